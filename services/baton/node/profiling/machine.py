"""Measures a machine: products, memory and disk, each in rounds until they agree. Needs seconds and an idle machine.

Whatever else runs makes a run slower, never faster. So a round counts with its quickest run, and the rate is the median
of the last rounds, whose spread stays honest: where they do not agree in time, it says so.
"""

from __future__ import annotations

import os
import platform
import shutil
import tempfile
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

from baton.capacity.hardware import MachineProfile, MeasuredRate, measured_rate
from baton.config.container_limits import usable_memory
from baton.engine.runners.yardstick import Work, Yardstick
from baton.errors import ConfigurationError
from baton.installation import install_line

Clock = Callable[[], float]

NUM_ROUNDS = 7
"""Rounds that count, the last ones."""
_ROUND_RUNS = 3
_SETTLED_SPREAD = 0.01
_LONGEST_SECONDS = 3.0
"""Time after which a figure is taken as it is."""
_LEAST_RUN_SECONDS = 0.02
"""Products grow until one takes as long: shorter ones measure the call."""
_SIZES = (512, 1024, 2048, 4096, 8192)
_MEMORY_BUFFER_BYTES = 256 << 20
_DISK_BYTES = 64 << 20
_CHUNK_BYTES = 4 << 20


def open_yardstick(engine: str) -> Yardstick:
    """Return what measures by an engine; "auto": torch, else mlx. Raises ConfigurationError without it."""
    for name in ("torch", "mlx") if engine == "auto" else (engine,):
        try:
            return _yardstick(name)
        except (ImportError, ConfigurationError) as error:
            if engine != "auto":
                raise ConfigurationError(f"engine {engine}: {error}") from error
    raise ConfigurationError(f"no engine to measure by: {install_line('torch')}, or {install_line('mlx')}")


def measure_machine(
    yardstick: Yardstick, folder: Path, clock: Clock = time.perf_counter, *, num_rounds: int = NUM_ROUNDS
) -> MachineProfile:
    """Return what this machine can do, by 2 `num_rounds` or more; the disk of `folder` needs 64 MiB meanwhile."""
    total, free = yardstick.memory() or usable_memory()
    buffer_bytes = min(_MEMORY_BUFFER_BYTES, free // 8)
    write, read = _disk_rates(folder, clock, num_rounds)
    return MachineProfile(
        machine=f"{platform.node()} {platform.system()} {platform.machine()}, {os.cpu_count()} cores",
        device=yardstick.device,
        engine=yardstick.engine,
        measured_at=datetime.now(UTC).isoformat(timespec="seconds"),
        matmul_flops={dtype: _product_rate(yardstick, dtype, clock, num_rounds) for dtype in yardstick.dtypes},
        memory_read_bytes_per_second=_rate(yardstick.read(buffer_bytes), buffer_bytes, clock, num_rounds),
        memory_copy_bytes_per_second=_rate(yardstick.copy(buffer_bytes), 2 * buffer_bytes, clock, num_rounds),
        disk_read_bytes_per_second=read,
        disk_write_bytes_per_second=write,
        memory_bytes=total,
        usable_memory_bytes=free,
        free_disk_bytes=shutil.disk_usage(folder).free,
    )


def _yardstick(name: str) -> Yardstick:
    if name == "torch":
        from baton.engine.runners.torch.yardstick import TorchYardstick

        return TorchYardstick()
    if name == "mlx":
        from baton.engine.runners.mlx.yardstick import MlxYardstick

        return MlxYardstick()
    raise ConfigurationError(f"expected auto, torch or mlx, got {name!r}")


def _product_rate(yardstick: Yardstick, dtype: str, clock: Clock, num_rounds: int) -> MeasuredRate:
    """Return the rate at the first size that takes long enough."""
    for size in _SIZES:
        work = yardstick.product(dtype, size)
        work()
        if size == _SIZES[-1] or _seconds(work, clock) >= _LEAST_RUN_SECONDS:
            break
    return _rate(work, 2.0 * size**3, clock, num_rounds)


def _rate(work: Work, amount: float, clock: Clock, num_rounds: int) -> MeasuredRate:
    """Return the rate of the last rounds, once they agree or the time is over."""
    work()
    seconds: deque[float] = deque(maxlen=num_rounds)
    began = clock()
    while True:
        seconds.append(min(_seconds(work, clock) for _ in range(_ROUND_RUNS)))
        if len(seconds) == num_rounds:
            rate = measured_rate(amount, seconds)
            if rate.spread <= _SETTLED_SPREAD or clock() - began >= _LONGEST_SECONDS:
                return rate


def _seconds(work: Work, clock: Clock) -> float:
    started = clock()
    work()
    return max(clock() - started, 1e-9)


def _disk_rates(folder: Path, clock: Clock, num_rounds: int) -> tuple[MeasuredRate, MeasuredRate]:
    """Return the rates of writing and reading a file."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    chunk = os.urandom(_CHUNK_BYTES)
    with tempfile.NamedTemporaryFile(dir=folder) as file:
        descriptor = file.fileno()
        num_runs = min(num_rounds, 3)
        writes = [_seconds(lambda: _write(descriptor, chunk), clock) for _ in range(num_runs)]
        reads = [_seconds(lambda: _read(descriptor), clock) for _ in range(num_runs)]
    return measured_rate(_DISK_BYTES, writes), measured_rate(_DISK_BYTES, reads)


def _write(descriptor: int, chunk: bytes) -> None:
    os.lseek(descriptor, 0, os.SEEK_SET)
    for _ in range(_DISK_BYTES // len(chunk)):
        os.write(descriptor, chunk)
    os.fsync(descriptor)


def _read(descriptor: int) -> None:
    with suppress(AttributeError, OSError):  # not everywhere can a file be put out of the page cache
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    os.lseek(descriptor, 0, os.SEEK_SET)
    while os.read(descriptor, _CHUNK_BYTES):
        pass
