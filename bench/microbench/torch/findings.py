"""What is asked of a GPU's numbers: each beside what the device could do, and beside transformers."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from rich.table import Table

_MIN_DECODE_SHARE = 0.7
_MIN_PACKED_SHARE = 0.6
_MIN_PREFILL_SHARE = 0.6
_MIN_BATCH_RATE, _JUDGED_BATCH = 25_000, (256, 1024)
_MAX_STREAMING_RATIO = 1.03

Line = Mapping[str, Any]
"""One measurement; `kind` names it."""


class Finding(NamedTuple):
    """A number and what is asked of it."""

    name: str
    value: float
    unit: str
    best: float | None = None
    """What the device could do, in the same unit."""
    bound: str = ""
    """What is asked; empty: nothing."""
    is_met: bool = True

    @property
    def share(self) -> float | None:
        """Return the value as a share of the best."""
        return None if self.best is None else self.value / self.best


def findings_of(lines: Sequence[Line]) -> list[Finding]:
    """Return the numbers that are judged, in the order in which they were measured."""
    rates = next(line for line in lines if line["kind"] == "rates")
    batches = [line for line in lines if line["kind"] == "batch"]
    findings: list[Finding] = []
    for line in lines:
        if line["kind"] == "decode":
            findings.append(_decode(line, rates))
        elif line["kind"] == "prefill":
            findings.append(_prefill(line, rates))
        elif line["kind"] == "streaming":
            ratio = line["ratio"]
            is_met = ratio <= _MAX_STREAMING_RATIO
            findings.append(
                Finding("prefill with KV handed over", ratio, "x", None, f"<= {_MAX_STREAMING_RATIO}", is_met)
            )
        elif line["kind"] == "batch":
            findings += _batch(line, batches)
    return [*findings, Finding("device to host", rates["host_bytes_per_second"] / 1e9, "GB/s")]


def table_of(findings: Sequence[Finding]) -> Table:
    """Return a line per number."""
    table = Table("what", "value", "unit", "of best", "asked", "met", title="torch engine on the GPU")
    for finding in findings:
        share = "" if finding.share is None else f"{finding.share:.2f}"
        is_met = ("yes" if finding.is_met else "NO") if finding.bound else ""
        table.add_row(finding.name, f"{finding.value:,.4g}", finding.unit, share, finding.bound, is_met)
    return table


def _decode(line: Line, rates: Line) -> Finding:
    batch_size, num_steps = line["batch_size"], line["num_steps"]
    best = batch_size * rates["memory_bytes_per_second"] / line["step_bytes"]
    rate = batch_size / line["step_seconds"]
    weights = line.get("weights", "auto")
    is_packed = weights != "auto"
    asked = _MIN_PACKED_SHARE if is_packed else _MIN_DECODE_SHARE
    is_asked = batch_size <= (1 if is_packed else 32)
    bound = f">= {asked} of best" if is_asked else ""
    steps = f"{num_steps} step{'s' if num_steps > 1 else ''} a launch"
    name = f"decode{f', {weights}' if is_packed else ''}, batch {batch_size}, {steps}"
    return Finding(name, rate, "tokens/s", best, bound, not is_asked or rate >= asked * best)


def _prefill(line: Line, rates: Line) -> Finding:
    seconds = statistics.median(line["seconds"])
    rate, best = line["num_tokens"] / seconds, line["num_tokens"] * rates["matmul_flops"] / line["flops"]
    bound = f">= {_MIN_PREFILL_SHARE} of best"
    return Finding(
        f"prefill, {line['num_tokens']} tokens", rate, "tokens/s", best, bound, rate >= _MIN_PREFILL_SHARE * best
    )


def _batch(line: Line, batches: Sequence[Line]) -> list[Finding]:
    rate, batch = line["num_output_tokens"] / line["seconds"], (line["num_requests"], line["max_tokens"])
    name = f"whole batch of {batch[0]} to {batch[1]} tokens, {line['system']}"
    if line["system"] != "baton":
        return [Finding(name, rate, "tokens/s")]
    others = [each for each in batches if each["system"] != "baton"]
    alike = [each for each in others if (each["num_requests"], each["max_tokens"]) == batch]
    least = _MIN_BATCH_RATE if batch == _JUDGED_BATCH else 0
    asked = max([least, *(other["num_output_tokens"] / other["seconds"] for other in alike)])
    name += f", temperature {line['temperature']}"
    host_microseconds = 1e6 * line["host_seconds"] / line["num_steps"]
    return [
        Finding(name, rate, "tokens/s", None, f">= {asked:,.0f}", rate >= asked),
        Finding(f"{name}, host time", host_microseconds, "us per step"),
    ]
