"""Measuring a machine."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from baton.config.container_limits import Memory
from baton.engine.runners.yardstick import Work
from baton.errors import ConfigurationError
from baton.node.profiling.machine import measure_machine, open_yardstick


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

    profile = measure_machine(yardstick, tmp_path, ticking(0.1), num_rounds=3)

    assert profile.matmul_flops["float32"].median == pytest.approx(2 * 512**3 / 0.1)
    assert profile.memory_read_bytes_per_second.median == pytest.approx((1 << 13) / 0.1)
    assert profile.memory_copy_bytes_per_second.median == pytest.approx((2 << 13) / 0.1)
    assert profile.disk_write_bytes_per_second.median == pytest.approx((64 << 20) / 0.1)
    assert (profile.memory_bytes, profile.usable_memory_bytes) == (1 << 20, 1 << 16)
    assert list(tmp_path.iterdir()) == []


def test_a_device_without_memory_of_its_own_has_what_the_process_may_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That is less than the machine's in a container, whose limit the plan must not pass."""
    yardstick = FakeYardstick()
    monkeypatch.setattr(yardstick, "memory", lambda: None)
    monkeypatch.setattr("baton.node.profiling.machine.usable_memory", lambda: Memory(1 << 30, 1 << 20))

    profile = measure_machine(yardstick, tmp_path, ticking(0.1), num_rounds=2)

    assert (profile.memory_bytes, profile.usable_memory_bytes) == (1 << 30, 1 << 20)


def test_products_grow_until_they_take_long_enough(tmp_path: Path) -> None:
    """Where even the largest is quick, it counts."""
    yardstick = FakeYardstick()

    measure_machine(yardstick, tmp_path, ticking(0.001), num_rounds=2)

    assert yardstick.sizes[:5] == [512, 1024, 2048, 4096, 8192]


class Disturbed:
    """A clock of a machine on which something else takes time now and then, and at first all the time."""

    def __init__(self, extra_seconds: Callable[[int], float]) -> None:
        self._extra_seconds = extra_seconds
        self._now = 0.0
        self._num_runs = 0

    def run(self) -> None:
        """Do one run of 0.01 s, and what disturbs it."""
        self._now += 0.01 + self._extra_seconds(self._num_runs)
        self._num_runs += 1

    def __call__(self) -> float:
        """Return the time."""
        return self._now


class DisturbedYardstick(FakeYardstick):
    """Whose runs take the clock's time."""

    def __init__(self, clock: Disturbed) -> None:
        super().__init__()
        self._clock = clock

    def read(self, num_bytes: int) -> Work:
        """Return a run."""
        return self._clock.run


def test_what_else_runs_now_and_then_does_not_count(tmp_path: Path) -> None:
    """A machine is measured by what it can do: two runs of three may be disturbed, and all of the first rounds."""
    clock = Disturbed(lambda run: 0.03 if run < 12 or run % 3 else 0.0)

    rate = measure_machine(DisturbedYardstick(clock), tmp_path, clock, num_rounds=5).memory_read_bytes_per_second

    assert rate.median == pytest.approx((1 << 13) / 0.01)
    assert rate.spread == pytest.approx(0.0)


def test_a_machine_that_never_settles_says_so(tmp_path: Path) -> None:
    """The time is limited, and the spread tells the truth."""
    clock = Disturbed(lambda run: 0.01 * ((run - 1) // 3 % 2))

    rate = measure_machine(DisturbedYardstick(clock), tmp_path, clock, num_rounds=4).memory_read_bytes_per_second

    assert rate.spread > 0.3
    assert rate.num_runs == 4


@pytest.mark.parametrize("engine", ["torch", "mlx"])
def test_every_engine_can_measure(engine: str) -> None:
    """A product, a sum and a copy run on its device."""
    yardstick = open_yardstick(engine)

    for work in (yardstick.product(yardstick.dtypes[0], 16), yardstick.read(4096), yardstick.copy(4096)):
        work()

    assert yardstick.engine == engine


def test_an_engine_that_is_none_is_refused() -> None:
    """The message lists those that there are."""
    with pytest.raises(ConfigurationError, match="auto, torch or mlx, got 'jax'"):
        open_yardstick("jax")
