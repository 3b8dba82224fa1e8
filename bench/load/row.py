"""A row of the table: one load of one deployment, its raw samples, and the numbers that follow from them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import chain, pairwise
from statistics import median
from typing import Any

import numpy as np

from bench.client.metrics import RequestSample
from bench.host_cpu import BUSY_SHARE
from bench.node_rates import Utilisation


def waits(arrival_seconds: Sequence[float], service_seconds: float) -> list[float]:
    """Return each request's wait in order of arrival, if every one takes equally long.

    The recursion over the arrivals that were: a request waits for what the one before it still has to wait and to be
    computed. Arrivals ascend; `service_seconds`, of each, is above 0. Source: D. V. Lindley, "The theory of queues with
    a single server", 1952.
    """
    found = [0.0] if arrival_seconds else []
    for before, now in pairwise(arrival_seconds):
        found.append(max(0.0, found[-1] + service_seconds - (now - before)))
    return found


JUDGED = "disaggregated"
"""Deployment whose rows have a verdict; others are compared with it."""
MAX_UTILISATION = 0.9
"""From it on a row has no verdict: queues grow whatever a server does."""
MIN_THROUGHPUT_RATIO = 0.95
MAX_TPOT_RATIO = 1.2
MAX_TTFT_RATIO = 1.5
MIN_SHARE_OF_BEST = 0.97
"""Of the best deployment under the same load, that one which may choose shall have."""
_DECIMALS = 5
_TOLD = (
    *("deployment", "rate", "num_output_tokens", "time_scale", "host_cpu_share", "throughput_ratio"),
    *("requests_per_second", "num_failed", "ttft_mean_seconds", "queue_seconds", "tpot_mean_seconds"),
    *("tpot_p99_ratio", "tpot_p99_by_batch", "itl_max_seconds", "e2e_mean_seconds", "failures"),
)
"""What a file has of a row by the same name."""


@dataclass(frozen=True, slots=True)
class Alone:
    """Requests one after the other on idle nodes: medians, in seconds of the run's clock."""

    ttft_seconds: float
    tpot_seconds: float
    """Per token after it."""
    cpu_seconds: float
    """CPU time of the host, all cores, per request."""

    @classmethod
    def of(cls, samples: Sequence[RequestSample], cpu_seconds: float) -> Alone:
        """Return the medians of complete requests, 1 or more."""
        return cls(
            median(sample.ttft_seconds for sample in samples),
            median(sample.tpot_seconds or 0.0 for sample in samples),
            cpu_seconds / len(samples),
        )


@dataclass(frozen=True, slots=True)
class Row:
    """One load. Samples have seconds of the run's clock; properties the nodes', `time_scale` times shorter."""

    deployment: str
    rate: float
    """Requests per second of the nodes' time; the run's clock had `rate / time_scale`."""
    num_output_tokens: int
    time_scale: float
    """How many times slower than what they stand for the nodes were."""
    utilisation: Utilisation
    """By formula."""
    service_seconds: float
    """Time of a prompt on the node that computes prompts, by formula (mock) or as measured alone; the run's clock."""
    alone: Alone
    host_cpu_share: float
    """Of the host during the row, 0 to 1."""
    is_link_shaped: bool
    """Whether the link has a rate of its own; else it is this host's loopback."""
    runs: tuple[tuple[RequestSample, ...], ...]
    """All requests of each seed, in order of arrival."""
    growth: float = 0.0
    """Of a decode step by a further sequence of these lengths, by formula: 0.02 makes two sequences 2 % slower."""

    @property
    def is_busy(self) -> bool:
        """Return whether the host was too busy for its clock to be the nodes'."""
        return self.host_cpu_share > BUSY_SHARE

    @property
    def done(self) -> list[RequestSample]:
        """Return the complete requests."""
        return [sample for sample in chain(*self.runs) if sample.is_ok]

    @property
    def num_failed(self) -> int:
        """Return how many failed."""
        return sum(map(len, self.runs)) - len(self.done)

    @property
    def throughput_ratio(self) -> float:
        """Return the rate at which requests end over the rate at which they came; failed ones do not end."""
        arriving = sum(_span([sample.sent_seconds for sample in run]) for run in self.runs)
        num_arriving = sum(len(run) - 1 for run in self.runs)
        return self.requests_per_second / self.time_scale * arriving / num_arriving if num_arriving else 0.0

    @property
    def requests_per_second(self) -> float:
        """Return the rate at which requests end."""
        ending = sum(_span([sample.finished_seconds for sample in run if sample.is_ok]) for run in self.runs)
        return self.time_scale * (len(self.done) - len(self.runs)) / ending if ending > 0 else 0.0

    @property
    def queue_seconds(self) -> float:
        """Return the mean wait of these very arrivals where one node computes one prompt after the other."""
        found = [wait for run in self.runs for wait in waits(sorted(s.sent_seconds for s in run), self.service_seconds)]
        return sum(found) / len(found) / self.time_scale

    @property
    def ttft_mean_seconds(self) -> float:
        """Return the mean time to first token."""
        return self._mean([sample.ttft_seconds for sample in self.done])

    @property
    def ttft_bound_seconds(self) -> float:
        """Return the longest mean time to first token that is good."""
        return MAX_TTFT_RATIO * self.alone.ttft_seconds / self.time_scale + self.queue_seconds

    @property
    def tpot_mean_seconds(self) -> float:
        """Return the mean time per output token."""
        return self._mean(self._tpots)

    @property
    def tpot_p99_ratio(self) -> float:
        """Return the 99th percentile of the time per output token over that of a request alone."""
        tpots, alone = self._tpots, self.alone.tpot_seconds
        return float(np.percentile(tpots, 99)) / alone if tpots and alone > 0 else 0.0

    @property
    def tpot_p99_by_batch(self) -> float:
        """Return what of `tpot_p99_ratio` follows by formula from the requests that decoded at the same time."""
        beside = list(chain.from_iterable(_num_beside([s for s in run if s.is_ok]) for run in self.runs))
        return 1 + self.growth * float(np.percentile(beside, 99)) if beside else 0.0

    @property
    def itl_max_seconds(self) -> float:
        """Return the longest gap between two tokens of a request."""
        return max((gap for sample in self.done for gap in sample.itl_seconds), default=0.0) / self.time_scale

    @property
    def e2e_mean_seconds(self) -> float:
        """Return the mean time until the last token."""
        return self._mean([sample.e2e_seconds for sample in self.done])

    @property
    def failures(self) -> list[str] | None:
        """Return what is not as good as it shall be; None from a utilisation of `MAX_UTILISATION` on.

        None too where nodes that are not alike both generate: a request alone has the better one, and is no measure.
        """
        used = self.utilisation
        if (
            self.deployment != JUDGED
            or max(used.prefill, used.decode, used.link if self.is_link_shaped else 0.0) >= MAX_UTILISATION
        ):
            return None
        checks = {
            f"{self.num_failed} requests failed": self.num_failed == 0,
            f"throughput {self.throughput_ratio:.2f}": self.throughput_ratio >= MIN_THROUGHPUT_RATIO,
            f"TPOT p99 {self.tpot_p99_ratio:.2f}x": self.tpot_p99_ratio <= MAX_TPOT_RATIO,
            f"TTFT over by {self.ttft_mean_seconds / self.ttft_bound_seconds:.2f}x": self.ttft_mean_seconds
            <= self.ttft_bound_seconds,
        }
        return [name for name, is_kept in checks.items() if not is_kept]

    def document(self) -> dict[str, Any]:
        """Return it as JSON has it: numbers in the nodes' seconds, samples in the run's."""
        return {
            **{name: getattr(self, name) for name in _TOLD},
            "utilisation": asdict(self.utilisation),
            "is_host_busy": self.is_busy,
            "ttft_alone_seconds": self.alone.ttft_seconds / self.time_scale,
            "tpot_alone_seconds": self.alone.tpot_seconds / self.time_scale,
            "prefill_nodes": dict(Counter(sample.prefill_node for sample in self.done)),
            "decode_nodes": dict(Counter(sample.decode_node for sample in self.done)),
            "errors": dict(Counter(sample.error for sample in chain(*self.runs) if sample.error)),
            "samples": [[_sample(sample) for sample in run] for run in self.runs],
        }

    @property
    def _tpots(self) -> list[float]:
        return [sample.tpot_seconds for sample in self.done if sample.tpot_seconds is not None]

    def _mean(self, seconds: Sequence[float]) -> float:
        return sum(seconds) / len(seconds) / self.time_scale if seconds else 0.0


HEAD = (
    f"{'deployment':14} {'req/s':>5} {'out':>4} {'x':>2}  {'util. P / link / D':>18} {'CPU':>5}  {'throughput':>10}"
    f"  {'TTFT mean (at most)':>21}  {'TPOT mean':>9} {'p99/alone (batch)':>17} {'ITL max':>8}  verdict"
)
"""Over the lines of `line`."""


def line(row: Row) -> str:
    """Return a row of the table; times in seconds and milliseconds of the nodes."""
    used = row.utilisation
    verdict = "-" if row.failures is None else ", ".join(row.failures) or "ok"
    return (
        f"{row.deployment:14} {row.rate:5.3g} {row.num_output_tokens:4} {row.time_scale:2.0f}"
        f"  {used.prefill:4.2f} / {used.link:4.2f} / {used.decode:4.2f} {100 * row.host_cpu_share:3.0f} %"
        f"  {row.throughput_ratio:10.3f}  {row.ttft_mean_seconds:9.3f} ({row.ttft_bound_seconds:8.3f} s)"
        f"  {1000 * row.tpot_mean_seconds:6.1f} ms {row.tpot_p99_ratio:9.2f} ({row.tpot_p99_by_batch:5.2f})"
        f" {row.itl_max_seconds:6.2f} s  {verdict}" + (", host busy" if row.is_busy else "")
    )


def compare_deployments(rows: Sequence[Row]) -> list[Mapping[str, Any]]:
    """Return, per load of several deployments, each one's share of the best: of throughput and of end-to-end."""
    loads: dict[tuple[float, int, float], dict[str, Row]] = {}
    for row in rows:
        loads.setdefault((row.rate, row.num_output_tokens, row.time_scale), {})[row.deployment] = row
    compared: list[Mapping[str, Any]] = []
    for (rate, num_output_tokens, time_scale), by_name in loads.items():
        most = max(row.requests_per_second for row in by_name.values())
        soonest = min(row.e2e_mean_seconds for row in by_name.values())
        if len(by_name) > 1 and most > 0:
            shares = {
                name: {"throughput": row.requests_per_second / most, "e2e": soonest / row.e2e_mean_seconds}
                for name, row in by_name.items()
                if row.done
            }
            load = {"rate": rate, "num_output_tokens": num_output_tokens, "time_scale": time_scale}
            compared.append({**load, "shares": shares})
    return compared


def _span(seconds: Sequence[float]) -> float:
    return max(seconds) - min(seconds) if seconds else 0.0


def _num_beside(done: Sequence[RequestSample]) -> list[float]:
    """Return how many others decoded with each request, on average over its own time."""
    spans = [(sample.sent_seconds + sample.ttft_seconds, sample.finished_seconds) for sample in done]
    return [
        (sum(max(0.0, min(end, other_end) - max(begin, other)) for other, other_end in spans) - (end - begin))
        / (end - begin)
        for begin, end in spans
        if end > begin
    ]


def _sample(sample: RequestSample) -> dict[str, Any]:
    """Return what every number of the table follows from."""
    if not sample.is_ok:
        return {"sent": sample.sent_seconds, "error": sample.error}
    return {
        "sent": sample.sent_seconds,
        "ttft": round(sample.ttft_seconds, _DECIMALS),
        "tpot": round(sample.tpot_seconds or 0.0, _DECIMALS),
        "itl_max": round(max(sample.itl_seconds, default=0.0), _DECIMALS),
        "finished": sample.finished_seconds,
        "prefill": sample.prefill_node,
        "decode": sample.decode_node,
    }
