"""The numbers and verdicts of a row, from samples whose numbers are known."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bench.client.metrics import RequestSample
from bench.load.row import Alone, Row, compare_deployments, line
from bench.node_rates import Utilisation

ALONE = Alone(ttft_seconds=0.2, tpot_seconds=0.02, cpu_seconds=0.1)


def sample(sent: float, ttft: float, tpot: float, num_tokens: int = 11) -> RequestSample:
    """Return a request with even gaps."""
    times = tuple(sent + ttft + index * tpot for index in range(num_tokens))
    return RequestSample(0, 0, sent, sent, times[-1], times, 100, 0, num_tokens, num_tokens)


def row(**changes: object) -> Row:
    """Return a row of one seed in which every request was as if alone."""
    good = Row(
        deployment="disaggregated",
        rate=1.0,
        num_output_tokens=11,
        time_scale=1.0,
        utilisation=Utilisation(0.2, 0.1, 0.1),
        service_seconds=0.2,
        alone=ALONE,
        host_cpu_share=0.5,
        is_link_shaped=True,
        runs=(tuple(sample(float(number), 0.2, 0.02) for number in range(10)),),
    )
    return replace(good, **changes)  # type: ignore[arg-type]


def test_requests_as_if_alone_are_good() -> None:
    """They end as fast as they come, and nothing is longer than alone."""
    good = row()

    assert good.throughput_ratio == pytest.approx(1.0)
    assert good.ttft_mean_seconds == pytest.approx(0.2)
    assert good.ttft_bound_seconds == pytest.approx(0.3)
    assert good.tpot_p99_ratio == pytest.approx(1.0)
    assert good.failures == []
    assert line(good).endswith("ok")


def test_a_server_that_falls_behind_is_told_so() -> None:
    """Each request takes half a second longer than the one before it."""
    late = row(runs=(tuple(sample(float(number), 0.2 + 0.5 * number, 0.02) for number in range(10)),))

    assert late.throughput_ratio == pytest.approx(1 / 1.5)
    assert [name.split()[0] for name in late.failures or ()] == ["throughput", "TTFT"]


def test_requests_that_come_together_may_wait_for_each_other() -> None:
    """The bound grows by the wait of the very arrivals."""
    together = row(runs=(tuple(sample(0.0, 0.2, 0.02) for _ in range(3)),))

    assert together.queue_seconds == pytest.approx(0.2)
    assert together.ttft_bound_seconds == pytest.approx(0.5)


def test_failed_requests_do_not_end() -> None:
    """A server that refuses every other request has half of the throughput."""
    runs = row().runs[0]
    refused = tuple(replace(each, error="503") if index % 2 else each for index, each in enumerate(runs))

    failed = row(runs=(refused,))

    assert failed.num_failed == 5
    assert failed.throughput_ratio == pytest.approx(0.5)
    assert (failed.failures or [""])[0] == "5 requests failed"


def test_a_full_node_has_no_verdict() -> None:
    """From a utilisation of 0.9 on queues grow, whoever serves; a link that is not shaped is never full."""
    assert row(utilisation=Utilisation(0.95, 0.1, 0.1)).failures is None
    assert row(utilisation=Utilisation(0.1, 0.95, 0.1)).failures is None
    assert row(utilisation=Utilisation(0.1, 0.95, 0.1), is_link_shaped=False).failures == []


def test_stretched_time_is_told_in_the_nodes_own() -> None:
    """All times are a fourth of the clock's; ratios stay."""
    slow = row(
        time_scale=4.0,
        service_seconds=0.8,
        alone=Alone(0.8, 0.08, 0.1),
        runs=(tuple(sample(4.0 * number, 0.8, 0.08) for number in range(10)),),
    )

    assert slow.ttft_mean_seconds == pytest.approx(0.2)
    assert slow.tpot_mean_seconds == pytest.approx(0.02)
    assert slow.requests_per_second == pytest.approx(1.0)
    assert slow.failures == []


def test_a_busy_host_is_named() -> None:
    """Above 85 % the clock is not the nodes'."""
    assert line(row(host_cpu_share=0.9)).endswith("host busy")


def test_deployments_are_compared_with_the_best_of_each_load() -> None:
    """Loads that only one deployment had are left out."""
    late = row(deployment="aggregated", runs=(tuple(sample(float(number), 0.6, 0.02) for number in range(10)),))

    (compared,) = compare_deployments([row(), late, row(rate=2.0)])

    assert late.failures is None
    assert compared["shares"]["disaggregated"]["e2e"] == 1.0
    assert compared["shares"]["aggregated"]["e2e"] == pytest.approx(0.4 / 0.8)


def test_a_larger_batch_explains_a_part_of_longer_steps() -> None:
    """Two requests decode together for half of their time, and a further sequence makes a step 2 % longer."""
    together = row(growth=0.02, runs=((sample(0.0, 0.2, 0.02), sample(0.1, 0.2, 0.02)),))

    assert together.tpot_p99_by_batch == pytest.approx(1.01)
