"""Energy and sensors against values computed by hand."""

from __future__ import annotations

import pytest

from bench.pptg.system_metrics import PowerSample, SystemMetrics, energy_joules

RISING = [PowerSample(0.0, 0.0), PowerSample(1.0, 10.0), PowerSample(2.0, 20.0)]


@pytest.mark.parametrize(
    ("begin", "end", "joules"),
    [
        (0.0, 2.0, 20.0),
        (0.5, 1.5, 10.0),
        (0.25, 0.75, 2.5),
        (2.0, 4.0, 40.0),
        (-1.0, 0.0, 0.0),
        (1.0, 1.0, 0.0),
    ],
)
def test_energy_is_the_area_under_the_power_with_interpolated_ends(begin: float, end: float, joules: float) -> None:
    """Power rises by 10 W per second; outside of the samples it stays as it was."""
    assert energy_joules(RISING, begin, end) == pytest.approx(joules)


def test_one_sample_is_constant_power() -> None:
    """Nothing else is known."""
    assert energy_joules([PowerSample(5.0, 30.0)], 0.0, 2.0) == pytest.approx(60.0)


def test_the_energy_of_all_nodes_is_summed() -> None:
    """A node without a power sensor adds nothing."""
    metrics = SystemMetrics()
    for seconds in (0.0, 1.0):
        metrics.take(seconds, {"a": {"sysPower": 10.0, "other": 1.0}, "b": {"sysPower": 5.0}, "c": {"temp": 40.0}})

    assert metrics.energy_joules(0.0, 1.0) == pytest.approx(15.0)
    assert metrics.by_node["a"][0].values == {"sysPower": 10.0}


def test_energy_is_unknown_where_no_node_reports_power() -> None:
    """None, not 0."""
    assert SystemMetrics().energy_joules(0.0, 1.0) is None
