"""Energy from samples of power."""

from __future__ import annotations

import pytest

from baton.node.sensors.monitor import MAX_SAMPLES, PowerLog


def log_of(*samples: tuple[float, float]) -> PowerLog:
    """Return a log with samples (seconds, watts)."""
    log = PowerLog()
    for seconds, watts in samples:
        log.add(seconds, watts)
    return log


def test_energy_is_the_area_below_the_power_with_interpolated_ends() -> None:
    """10 W rising to 30 W over two seconds; the window takes its middle half."""
    log = log_of((0, 10), (2, 30))

    assert log.energy_joules(0, 2) == pytest.approx(40)
    assert log.energy_joules(0.5, 1.5) == pytest.approx(20)
    assert log.energy_joules(1, 1) == 0


def test_samples_inside_the_window_bend_the_line() -> None:
    """A peak in the middle counts."""
    assert log_of((0, 0), (1, 100), (2, 0)).energy_joules(0, 2) == pytest.approx(100)


def test_power_is_constant_a_little_past_the_last_sample() -> None:
    """A request ends between two readings."""
    assert log_of((0, 10), (1, 20)).energy_joules(1, 2) == pytest.approx(20)


def test_a_window_that_samples_do_not_cover_has_no_energy() -> None:
    """None rather than a guess: before the first, long after the last, across a hole, without any."""
    log = log_of((10, 5), (11, 5), (20, 5))

    assert PowerLog().energy_joules(0, 1) is None
    assert log.energy_joules(0, 10.5) is None
    assert log.energy_joules(12, 19) is None
    assert log.energy_joules(20, 30) is None
    assert log.energy_joules(10, 11) == pytest.approx(5)


def test_old_samples_are_forgotten() -> None:
    """The log is bounded."""
    log = log_of(*((float(second), 1.0) for second in range(MAX_SAMPLES + 100)))

    assert log.energy_joules(0, 50) is None
    assert log.energy_joules(200, 300) == pytest.approx(100)
