"""Results of `baton bench serve` as files and as a table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bench.client.metrics import Distribution, RequestSample, ServiceLevel, Summary, summarize
from bench.results_file import write_results

FORMAT = "baton-bench-serve/1"
_MILLISECONDS = (
    ("TTFT", "ttft_seconds"),
    ("TPOT", "tpot_seconds"),
    ("ITL", "itl_seconds"),
    ("end-to-end", "e2e_seconds"),
    ("lateness", "lateness_seconds"),
)


@dataclass(frozen=True, slots=True)
class Run:
    """A run: what was asked of whom, and the raw samples. The numbers follow from the samples."""

    label: str
    settings: Mapping[str, Any]
    machine: Mapping[str, Any]
    server: Mapping[str, Any]
    service_level: ServiceLevel
    samples: tuple[RequestSample, ...]

    @property
    def summary(self) -> Summary:
        """The run's numbers, computed anew."""
        return summarize(self.samples, self.service_level)


def write_run(run: Run, path: Path) -> None:
    """Write a run as JSON, a sample per line."""
    write_results(path, {"format": FORMAT, "summary": asdict(run.summary)} | asdict(run))


def table(summary: Summary) -> str:
    """Return a run's numbers as text: latencies in milliseconds, rates per second."""
    lines = [
        f"duration {summary.duration_seconds:.2f} s, most requests in flight {summary.max_in_flight}",
        f"requests {summary.num_requests}, failed {summary.num_failed}, short {summary.num_short}",
        f"tokens: prompt {summary.prompt_tokens} (cached {summary.cached_tokens}), output {summary.completion_tokens}",
        f"throughput: {summary.requests_per_second:.2f} requests/s, {summary.total_tokens_per_second:.1f} tokens/s",
        f"output throughput: {summary.output_tokens_per_second:.1f} tokens/s",
        f"goodput: {summary.good_requests_per_second:.2f} requests/s, {100 * summary.good_share:.1f} % of requests",
        "",
        f"{'milliseconds':12}" + "".join(f"{name:>10}" for name in ("mean", "p50", "p90", "p95", "p99", "max")),
    ]
    return "\n".join([*lines, *(_row(name, getattr(summary, field)) for name, field in _MILLISECONDS)])


def _row(name: str, values: Distribution | None) -> str:
    if values is None:
        return f"{name:12}{'-':>10}"
    columns = (values.mean, values.p50, values.p90, values.p95, values.p99, values.max)
    return f"{name:12}" + "".join(f"{1000 * value:>10.2f}" for value in columns)
