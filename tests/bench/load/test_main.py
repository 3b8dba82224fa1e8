"""Which loads run on which pairs, and how far their time is stretched."""

from __future__ import annotations

from argparse import Namespace

from bench.load.__main__ import plan_runs
from bench.load.measure import Load


def options(**changes: object) -> Namespace:
    """Return options of two rates and two outputs, 100 requests each."""
    usual = {
        "deployment": ["disaggregated"],
        "engines": ("mock", "mock"),
        "rates": [1.0, 4.0],
        "outputs": [16, 32],
        "count": 100,
        "time_scale": 1.0,
        "link": 0.0,
        "host_rate": None,
        "at_once": 1,
    }
    return Namespace(**usual | changes)


def test_one_pair_serves_all_loads_one_after_the_other() -> None:
    """Without bounds nothing is stretched."""
    (run,) = plan_runs(options())

    assert run.pair.time_scale == 1.0
    assert run.loads == [Load(1.0, 16), Load(1.0, 32), Load(4.0, 16), Load(4.0, 32)]
    assert run.seconds(100) == 250.0


def test_a_rate_is_stretched_to_what_the_host_can_bear() -> None:
    """Loads of one stretch share a pair."""
    runs = plan_runs(options(host_rate=2.0))

    assert [(run.pair.time_scale, run.loads[0].rate) for run in runs] == [(1.0, 1.0), (2.0, 4.0)]


def test_the_longest_run_is_divided_among_pairs_that_run_at_once() -> None:
    """No load is lost, and no pair is without one."""
    runs = plan_runs(options(host_rate=2.0, at_once=3))

    assert sorted((run.pair.time_scale, run.loads) for run in runs) == [
        (1.0, [Load(1.0, 16)]),
        (1.0, [Load(1.0, 32)]),
        (2.0, [Load(4.0, 16), Load(4.0, 32)]),
    ]


def test_real_engines_are_never_stretched() -> None:
    """Their time is the clock's."""
    (run,) = plan_runs(options(host_rate=0.5, engines=("torch", "mlx")))

    assert run.pair.time_scale == 1.0
