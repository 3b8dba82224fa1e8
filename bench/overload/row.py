"""The numbers of one load under one policy; METHODOLOGY.md defines them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from bench.client.metrics import ServiceLevel
from bench.overload.drive import Drive, Sample

KEPT_SHARE = 0.9
"""Of the best goodput of all, what a policy keeps under overload if it is as it shall be."""
MAX_REFUSAL_SECONDS = 0.05
"""Time within which 99 of 100 refusals are answered."""
MAX_GROWTH = 1.1
"""Resident memory at the end over that after a quarter of the load."""
MAX_TTFT_RATIO = 1.3
"""p99 of TTFT of a tenant beside a flood over that beside a fair one."""
HEAD = (
    f"{'policy':14} {'load':>5} {'asked/s':>8} {'good/s':>7} {'share':>6} {'refused':>8} {'cut':>5} "
    f"{'429 p50':>8} {'p99 ms':>7} {'TTFT p99 a':>10} {'b':>7} {'TPOT p99':>9} {'grown':>6} {'CPU':>5}"
)


@dataclass(frozen=True, slots=True)
class Row:
    """One load under one policy. Seconds are of the run's clock."""

    policy: str
    load: float
    """Requests per second over the capacity."""
    seconds: float
    level: ServiceLevel
    """Within what a request is good."""
    host_cpu_share: float
    """Of all cores, the load generator's part among it."""
    drive: Drive

    @property
    def asked_per_second(self) -> float:
        """Requests sent per second of the load."""
        return len(self.drive.samples) / self.seconds

    @property
    def goodput(self) -> float:
        """Good requests per second of the load."""
        return sum(map(self.is_good, self.drive.samples)) / self.seconds

    def is_good(self, sample: Sample) -> bool:
        """Return whether a request was complete and within the objectives; one that was cut is, too."""
        if sample.end != "complete" or sample.ttft_seconds is None:
            return False
        begins_in_time = sample.ttft_seconds <= (self.level.ttft_seconds or 0.0)
        return begins_in_time and (sample.tpot_seconds or 0.0) <= (self.level.tpot_seconds or 0.0)

    def count(self, end: str) -> int:
        """Return how many requests ended in a way."""
        return sum(sample.end == end for sample in self.drive.samples)

    def refusal_seconds(self, share: float) -> float | None:
        """Return a quantile of the time until a refusal was answered; None without refusals."""
        return quantile((each.seconds for each in self.drive.samples if each.end == "refused"), share)

    def ttft_seconds(self, tenant: str, share: float) -> float | None:
        """Return a quantile of a tenant's times to first token, of all requests that got one."""
        return quantile((each.ttft_seconds for each in self.drive.samples if each.tenant == tenant), share)

    def tpot_seconds(self, share: float) -> float | None:
        """Return a quantile of the time per output token of complete requests."""
        return quantile((each.tpot_seconds for each in self.drive.samples if each.end == "complete"), share)

    @property
    def memory_growth(self) -> Mapping[str, float]:
        """Resident memory at the end over that after a quarter of the load, by service."""
        begin = next((each for each in self.drive.memory if each.seconds >= self.seconds / 4), None)
        if begin is None:
            return {}
        last = self.drive.memory[-1].num_bytes
        return {name: last[name] / size for name, size in begin.num_bytes.items() if name in last}

    def document(self) -> dict[str, Any]:
        """Return the row with its raw samples."""
        numbers = {
            "policy": self.policy,
            "load": self.load,
            "seconds": self.seconds,
            "asked_per_second": self.asked_per_second,
            "goodput_per_second": self.goodput,
            "refused": self.count("refused"),
            "failed": self.count("failed"),
            "abandoned": self.count("abandoned"),
            "degraded": sum(each.is_degraded for each in self.drive.samples),
            "refusal_p50_seconds": self.refusal_seconds(0.5),
            "refusal_p99_seconds": self.refusal_seconds(0.99),
            "ttft_p99_seconds": {tenant: self.ttft_seconds(tenant, 0.99) for tenant in self.tenants},
            "tpot_p99_seconds": self.tpot_seconds(0.99),
            "memory_growth": self.memory_growth,
            "host_cpu_share": self.host_cpu_share,
        }
        return {**numbers, "memory": [asdict(each) for each in self.drive.memory], "samples": self._samples()}

    @property
    def tenants(self) -> Sequence[str]:
        """Return who asked, sorted."""
        return sorted({each.tenant for each in self.drive.samples})

    def _samples(self) -> list[list[object]]:
        """Return the samples as rows: tenant, sent, end, seconds, TTFT, TPOT, output tokens, cut."""
        rows: list[list[object]] = []
        for each in self.drive.samples:
            times = [_rounded(value) for value in (each.seconds, each.ttft_seconds, each.tpot_seconds)]
            sent_seconds = _rounded(each.sent_seconds)
            rows.append([each.tenant, sent_seconds, each.end, *times, each.num_output_tokens, each.is_degraded])
        return rows


def line(row: Row, best: float) -> str:
    """Return a row of the table; `best` is the highest goodput so far."""
    refused = row.count("refused") / max(1, len(row.drive.samples))
    cut = sum(each.is_degraded for each in row.drive.samples)
    growth = max(row.memory_growth.values(), default=1.0)
    return (
        f"{row.policy:14} {row.load:5.2g} {row.asked_per_second:8.2f} {row.goodput:7.2f} {row.goodput / best:6.2f} "
        f"{100 * refused:7.1f}% {cut:5} {_ms(row.refusal_seconds(0.5)):>8} {_ms(row.refusal_seconds(0.99)):>7} "
        f"{_s(row.ttft_seconds('a', 0.99)):>10} {_s(row.ttft_seconds('b', 0.99)):>7} "
        f"{_ms(row.tpot_seconds(0.99)):>9} {growth:6.2f} {100 * row.host_cpu_share:4.0f}%"
    )


def faults(rows: Sequence[Row], policy: str) -> list[str]:
    """Return in what a policy is not as it shall be, in words."""
    best = max((row.goodput for row in rows), default=0.0)
    found = []
    for row in (row for row in rows if row.policy == policy and row.load > 1):
        name = f"{policy} at {row.load:g} times the capacity"
        if row.goodput < KEPT_SHARE * best:
            found.append(f"{name}: goodput {row.goodput:.2f}/s is {row.goodput / best:.2f} of the best, {best:.2f}/s")
        if (seconds := row.refusal_seconds(0.99)) is not None and seconds > MAX_REFUSAL_SECONDS:
            found.append(f"{name}: refusals take {1000 * seconds:.0f} ms (p99)")
        for service, growth in row.memory_growth.items():
            if growth > MAX_GROWTH:
                found.append(f"{name}: the {service} has grown {growth:.2f} times")
    return found


def quantile(values: Iterable[float | None], share: float) -> float | None:
    """Return a quantile of what is there, interpolated linearly between the nearest ranks; None of nothing."""
    known = [value for value in values if value is not None]
    return float(np.quantile(known, share)) if known else None


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 5)


def _ms(seconds: float | None) -> str:
    return "-" if seconds is None else f"{1000 * seconds:.1f}"


def _s(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds:.2f}"
