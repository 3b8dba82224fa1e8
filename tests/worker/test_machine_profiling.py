"""Measuring a machine."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from baton.engine.yardstick import Work
from baton.errors import ConfigurationError
from baton.worker.machine_profiling import measure_machine, open_yardstick


class FakeYardstick:
    """Does nothing, on a device with memory of its own."""

    engine = "fake"
    device = "none"
    dtypes = ("float32",)

    def __init__(self) -> None:
        self.sizes: list[int] = []

    def product(self, dtype: str, size: int) -> Work:
        """Note the size."""
        self.sizes.append(size)
        return lambda: None

    def read(self, num_bytes: int) -> Work:
        """Note the bytes."""
        self.sizes.append(num_bytes)
        return lambda: None

    copy = read

    def memory(self) -> tuple[int, int]:
        """Return made-up figures."""
        return 1 << 20, 1 << 16


def ticking(step_seconds: float) -> Callable[[], float]:
    """Return a clock that goes on by a step at each look."""

    def ticks() -> Iterator[float]:
        now = 0.0
        while True:
            yield now
            now += step_seconds

    return ticks().__next__


def test_rates_follow_from_work_and_time(tmp_path: Path) -> None:
    """Every run takes 0.1 s here; buffers are an eighth of what is free at most, a copy counts both ways."""
    yardstick = FakeYardstick()

    profile = measure_machine(yardstick, tmp_path, ticking(0.1), num_runs=3)

    assert profile.matmul_flops["float32"].median == pytest.approx(2 * 512**3 / 0.1)
    assert profile.memory_read_bytes_per_second.median == pytest.approx((1 << 13) / 0.1)
    assert profile.memory_copy_bytes_per_second.median == pytest.approx((2 << 13) / 0.1)
    assert profile.disk_write_bytes_per_second.median == pytest.approx((64 << 20) / 0.1)
    assert (profile.memory_bytes, profile.usable_memory_bytes) == (1 << 20, 1 << 16)
    assert list(tmp_path.iterdir()) == []


def test_products_grow_until_they_take_long_enough(tmp_path: Path) -> None:
    """Where even the largest is quick, it counts."""
    yardstick = FakeYardstick()

    measure_machine(yardstick, tmp_path, ticking(0.001), num_runs=2)

    assert yardstick.sizes[:5] == [512, 1024, 2048, 4096, 8192]


@pytest.mark.parametrize("engine", ["torch", "mlx", "numpy"])
def test_every_engine_can_measure(engine: str) -> None:
    """A product, a sum and a copy run on its device."""
    yardstick = open_yardstick(engine)

    for work in (yardstick.product(yardstick.dtypes[0], 16), yardstick.read(4096), yardstick.copy(4096)):
        work()

    assert yardstick.engine == engine


def test_an_engine_that_is_none_is_refused() -> None:
    """The message lists those that there are."""
    with pytest.raises(ConfigurationError, match="auto, torch, mlx or numpy, got 'jax'"):
        open_yardstick("jax")
