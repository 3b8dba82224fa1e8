"""One load against one server: what it cost, and how long it took."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from bench.client.metrics import percentile
from bench.servers.stream_load import Latencies, Load


@dataclass(frozen=True, slots=True)
class Sample:
    """One load against one server."""

    system: str
    """baton, or direct: a gRPC client of its decode node."""
    step_seconds: float
    load: Load
    repeat: int
    latencies: Latencies
    cpu_seconds: dict[str, float]
    """CPU time over the load by process; "NAME/main": of its first thread alone."""

    def cpu_microseconds_per_token(self, process: str) -> float:
        """Return the CPU time of a process over the output tokens of the load."""
        return self.cpu_seconds[process] * 1e6 / self.load.num_all_tokens

    def ttft_seconds(self, share: float) -> float:
        """Return a quantile over all requests, interpolated between the two nearest ranks."""
        return percentile(sorted(self.latencies.ttft_seconds), 100 * share)

    def to_json(self) -> dict[str, object]:
        """Return the sample with what follows from it."""
        return {
            **asdict(self),
            "cpu_us_per_token": {name: self.cpu_microseconds_per_token(name) for name in self.cpu_seconds},
            "cpu_us_per_request": {
                name: seconds * 1e6 / self.load.num_all_requests for name, seconds in self.cpu_seconds.items()
            },
            **{f"ttft_p{percent}_seconds": self.ttft_seconds(percent / 100) for percent in (50, 99)},
            **{f"itl_p{percent}_seconds": self.latencies.itl_seconds(percent / 100) for percent in (50, 99)},
        }


def median_of(samples: Sequence[Sample], value: str, process: str = "") -> float:
    """Return the median over repeats: "cpu" (microseconds per token of a process), or a field of `Sample.to_json`."""
    if value == "cpu":
        return statistics.median(sample.cpu_microseconds_per_token(process) for sample in samples)
    return statistics.median(float(str(sample.to_json()[value])) for sample in samples)


def summary_lines(samples: Sequence[Sample]) -> list[str]:
    """Return a table: medians over repeats, by step time, number of streams and system."""
    head = f"{'step ms':>8} {'streams':>8} {'system':>8} {'gateway':>8} {'router':>8} {'node':>8} {'its loop':>8}"
    times_head = f"{'TTFT p50':>8} {'p99':>8} {'ITL p50':>8} {'p99':>8} {'failed':>7}"
    lines = [f"{head} {times_head}    (CPU us per token; ms)"]
    keys = dict.fromkeys((sample.step_seconds, sample.load.num_streams, sample.system) for sample in samples)
    for step_seconds, num_streams, system in keys:
        group = [
            sample
            for sample in samples
            if (sample.step_seconds, sample.load.num_streams, sample.system) == (step_seconds, num_streams, system)
        ]
        costs = [
            f"{median_of(group, 'cpu', name):.1f}" if name in group[0].cpu_seconds and system != "direct" else "-"
            for name in ("gateway", "router", "decode", "decode/main")
        ]
        times = [
            f"{median_of(group, name) * 1000:.2f}"
            for name in ("ttft_p50_seconds", "ttft_p99_seconds", "itl_p50_seconds", "itl_p99_seconds")
        ]
        num_failed = sum(sample.latencies.num_failed for sample in group)
        place = f"{step_seconds * 1000:8g} {num_streams:8d} {system:>8}"
        lines.append(" ".join([place, *(f"{text:>8}" for text in (*costs, *times)), f"{num_failed:>7}"]))
    return lines
