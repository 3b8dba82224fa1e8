"""Who is asked for the rest of a broken KV stream, and when the decode node computes it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from baton.capacity.cost import CostEstimate
from baton.decode.kv_stream.recovery import Broken, PrefillOption, choose_option, resume_seconds
from baton.kv.stream import KvProgress

ESTIMATE = CostEstimate(
    queue_seconds=1.0,
    prefill_seconds=10.0,
    transfer_seconds=4.0,
    exposed_seconds=0.5,
    time_to_first_token_seconds=11.5,
    start_seconds=12.0,
    step_seconds=0.1,
    expected_output_tokens=10,
    imposed_seconds=0.0,
)
FIRST = PrefillOption("first", estimate=ESTIMATE)
SECOND, THIRD = PrefillOption("second", estimate=ESTIMATE), PrefillOption("third", estimate=ESTIMATE)
BROKEN = Broken(
    option=FIRST,
    is_node_in_doubt=False,
    is_node_unfit=False,
    num_streams_by_node={"first": 1},
    progress=KvProgress((100, 60), 200),
    token_begin=0,
    has_first_token=False,
    is_cache_bypassed=False,
)


@pytest.mark.parametrize(
    ("changes", "node_id", "seconds"),
    [
        ({}, "first", 1.5 + 10.0 * 0.7),
        ({}, "second", 1.5 + 10.0),
        ({"has_first_token": True}, "first", 1.5 + 4.0 * 0.6),
        ({"has_first_token": True}, "second", 1.5 + 10.0),
        ({"has_first_token": True, "is_cache_bypassed": True}, "first", 1.5 + 10.0),
        ({"progress": KvProgress((199, 199), 200)}, "first", 1.5 + 10.0 / 200),
    ],
)
def test_a_resumed_stream_costs_what_its_node_must_still_do(
    changes: dict[str, object], node_id: str, seconds: float
) -> None:
    """The same node has its prefix cache, another computes everything; both send only what is missing."""
    broken = replace(BROKEN, **changes)  # type: ignore[arg-type]

    assert resume_seconds(broken, PrefillOption(node_id, estimate=ESTIMATE)) == pytest.approx(seconds)


def chosen(
    broken: Broken, *alternatives: PrefillOption, local_seconds: float = 99.0, seconds_left: float | None = None
) -> str:
    """Return the node that is asked, or "here"."""
    option = choose_option(broken, alternatives, local_seconds=local_seconds, seconds_left=seconds_left)
    return option.node_id if option else "here"


def test_the_same_node_comes_first_where_the_stream_alone_broke() -> None:
    """It has most of the work done."""
    assert chosen(BROKEN, SECOND) == "first"


def test_others_come_first_where_the_node_is_in_doubt() -> None:
    """In the router's order; the node itself comes last."""
    doubtful = replace(BROKEN, is_node_in_doubt=True)

    assert chosen(doubtful, SECOND, THIRD) == "second"
    assert chosen(replace(doubtful, num_streams_by_node={"first": 1, "second": 2}), SECOND, THIRD) == "third"
    assert chosen(doubtful) == "first"


def test_a_node_that_has_refused_is_not_asked_again() -> None:
    """Nor is one that hangs."""
    unfit = replace(BROKEN, is_node_unfit=True)

    assert chosen(unfit, SECOND) == "second"
    assert chosen(unfit) == "here"


def test_a_node_is_asked_for_two_streams_at_most() -> None:
    """So the number of streams is bounded, whatever goes wrong."""
    assert chosen(replace(BROKEN, num_streams_by_node={"first": 2})) == "here"


def test_nobody_is_asked_where_computing_here_is_cheaper() -> None:
    """Resuming is an optimisation like any placement."""
    assert chosen(BROKEN, local_seconds=8.6) == "first"
    assert chosen(BROKEN, local_seconds=8.4) == "here"


def test_nobody_is_asked_who_would_answer_too_late() -> None:
    """The request has a deadline."""
    assert chosen(BROKEN, seconds_left=8.6) == "first"
    assert chosen(BROKEN, seconds_left=8.4) == "here"


def test_a_node_of_which_nothing_is_known_is_worth_a_try() -> None:
    """Requests need not come from a router."""
    assert chosen(replace(BROKEN, option=PrefillOption("first")), local_seconds=0.001) == "first"
