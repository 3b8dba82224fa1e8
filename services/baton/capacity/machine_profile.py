"""What a machine can do, whatever it serves: rates with their spread, measured once and kept as JSON."""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass


@dataclass(frozen=True, slots=True)
class MeasuredRate:
    """A rate measured several times."""

    median: float
    """Per second, above 0."""
    spread: float
    """Distance of the quartiles / median, 0 or more."""
    num_runs: int
    """Runs, or rounds of which the quickest run counts, 2 or more."""


@dataclass(frozen=True, slots=True)
class MachineProfile:
    """One machine's figures."""

    machine: str
    device: str
    engine: str
    measured_at: str
    """ISO 8601, UTC."""
    matmul_flops: Mapping[str, MeasuredRate]
    """FLOP/s of a square product, by number format."""
    memory_read_bytes_per_second: MeasuredRate
    """Bytes read by a sum over more than caches hold."""
    memory_copy_bytes_per_second: MeasuredRate
    """Bytes read and written by a copy, both counted."""
    disk_read_bytes_per_second: MeasuredRate
    """Sequential, past the page cache where the system allows it."""
    disk_write_bytes_per_second: MeasuredRate
    """Sequential, to the medium (fsync)."""
    memory_bytes: int
    """Main memory, or the accelerator's own."""
    usable_memory_bytes: int
    """What of it could be given to a process at the time."""
    free_disk_bytes: int
    """Free where models and this profile are kept."""

    def as_json(self) -> str:
        """Return the profile as a document."""
        return json.dumps(asdict(self), indent=1)


def measured_rate(work: float, seconds: Sequence[float]) -> MeasuredRate:
    """Return the rate of runs that each did `work`.

    Raises:
        ValueError: If there are fewer than two runs, or one took no time.
    """
    if len(seconds) < 2 or min(seconds) <= 0:
        raise ValueError(f"need 2 runs or more that took time, got {seconds}")
    low, median, high = statistics.quantiles([work / duration for duration in seconds], n=4, method="inclusive")
    return MeasuredRate(median, (high - low) / median, len(seconds))


def read_profile(text: str) -> MachineProfile:
    """Return the profile of a document that `as_json` wrote.

    Raises:
        ValueError: If it is none.
    """
    try:
        document = json.loads(text)
        rates = {name: MeasuredRate(**value) for name, value in document.items() if name.endswith("_per_second")}
        matmul = {dtype: MeasuredRate(**value) for dtype, value in document["matmul_flops"].items()}
        return MachineProfile(**(document | rates | {"matmul_flops": matmul}))
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"no profile of a machine: {error!r}") from error
