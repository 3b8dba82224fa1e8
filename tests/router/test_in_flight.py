"""Placements in flight: what they add to their nodes, and what was placed of late."""

from __future__ import annotations

from dataclasses import replace

import pytest

from baton.capacity import cost
from baton.capacity.cost import PromptQueue
from baton.capacity.snapshot import NodeLoad, QueuedPrompt
from baton.router.in_flight import PlacedWork, PlacementLedger, RecentWork
from router.samples import DGX, Clock

FREE = NodeLoad(num_free_blocks=100)
LISTED = replace(
    FREE, num_waiting=1, num_pending_prompt_tokens=50, queued_prompts=(QueuedPrompt("p", 10, 50),), num_free_blocks=96
)


def placed(clock: Clock) -> PlacementLedger:
    """Return one remote placement, "p", of "dgx" for "mac"; "dgx" has 10 of its 60 positions in its cache."""
    ledger = PlacementLedger(clock, ttl_seconds=10.0)
    ledger.add("p", "mac", PlacedWork(60, 60, 4))
    ledger.add("p", "dgx", PlacedWork(10, 60, 4, is_export=True))
    return ledger


def queue(ledger: PlacementLedger, load: NodeLoad, now_seconds: float = 100.0) -> PromptQueue:
    """Return the queue of "dgx", which reported at 100 s."""
    return ledger.queued_work("dgx", load, 100.0, DGX.shape, DGX.profile).at(now_seconds)


def test_a_prompt_has_passes_of_its_own_where_it_came_when_those_before_it_were_planned() -> None:
    """Or is in the first with others, where a decode step runs meanwhile. What was listed came before."""

    def seconds(load: NodeLoad, *placed_at: float) -> float:
        clock = Clock()
        ledger = PlacementLedger(clock, ttl_seconds=10.0)
        for number, clock.seconds in enumerate(placed_at):
            ledger.add(f"p{number}", "dgx", PlacedWork(0, 100, 7))
        work = ledger.queued_work("dgx", load, 100.0, DGX.shape, DGX.profile, 512)
        return sum(work.listed) + sum(each for each, _ in work.placed)

    one = seconds(FREE, 103.0)
    listed = replace(FREE, num_waiting=1, num_pending_prompt_tokens=100, queued_prompts=(QueuedPrompt("q", 0, 100),))
    decoding = replace(FREE, num_running=1, num_decoding=1, mean_context_tokens=10.0)
    assert seconds(FREE, 103.0, 103.001) == pytest.approx(2 * one)
    assert seconds(listed, 100.001) == pytest.approx(2 * one)
    assert seconds(decoding, 103.0, 103.001) == pytest.approx(seconds(decoding, 103.0), rel=0.05)


def test_a_placement_counts_on_both_nodes() -> None:
    """One more waiting request on each, with the work that falls to it."""
    ledger = placed(Clock())

    assert ledger.added_to("mac", FREE) == NodeLoad(num_waiting=1, num_free_blocks=96)
    assert ledger.added_to("dgx", FREE) == NodeLoad(1, 0, 50, 96, num_exports=1)


@pytest.mark.parametrize("node_id", ["mac", "dgx"])
def test_a_node_s_own_report_covers_what_it_names(node_id: str) -> None:
    """A report without the placement leaves it; one that names it ends it there and nowhere else."""
    ledger = placed(Clock())

    ledger.reported(node_id, FREE, ["other"])
    assert ledger.added_to(node_id, FREE).num_waiting == 1

    ledger.reported(node_id, FREE, ["p"])
    assert ledger.added_to(node_id, FREE) == FREE
    assert ledger.added_to("dgx" if node_id == "mac" else "mac", FREE).num_waiting == 1


def test_a_prompt_is_queued_once_whoever_names_it() -> None:
    """Before and after the node lists it, its positions outside the cache are computed."""
    clock = Clock()
    ledger = placed(clock)
    expected = cost.prefill_seconds(DGX.shape, DGX.profile, 10, 60)
    before = queue(ledger, FREE)

    ledger.reported("dgx", LISTED, ["p"])

    assert before.total_seconds == pytest.approx(expected)
    assert queue(ledger, replace(LISTED, queued_prompts=(QueuedPrompt("p", 0, 60),))) == before
    ledger.reported("dgx", FREE, [])
    assert queue(ledger, FREE).total_seconds == 0


def test_a_report_tells_whose_prompts_are_through() -> None:
    """Of each once, whoever was placed earlier; who decodes what another computes has computed nothing of it."""
    ledger = placed(Clock())
    ledger.add("q", "dgx", PlacedWork(0, 50, 4, is_export=True))
    ledger.add("r", "dgx", PlacedWork(50, 50, 4, is_export=True))
    ledger.add("s", "dgx", PlacedWork(50, 50, 4))

    assert ledger.reported("mac", FREE, ["p"]) == {}

    assert ledger.reported("dgx", LISTED, ["p", "q", "r", "s"]) == {"q": 1.0, "r": 1.0, "p": 0.0}
    assert ledger.reported("dgx", FREE, []) == {"p": 1.0}


def test_a_queue_shrinks_between_reports() -> None:
    """Both what was listed and what has been placed since: the node computes all the while."""
    clock = Clock()
    ledger = PlacementLedger(clock, ttl_seconds=10.0)
    load = replace(LISTED, num_pending_prompt_tokens=8192, queued_prompts=(QueuedPrompt("", 0, 8192),))
    full = queue(ledger, load)
    clock.seconds += 1.0
    ledger.add("q", "dgx", PlacedWork(0, 1024, 64))
    both = queue(ledger, load, clock.seconds)
    clock.seconds += full.total_seconds

    assert both.total_seconds == pytest.approx(
        full.total_seconds - 1.0 + cost.prefill_seconds(DGX.shape, DGX.profile, 0, 1024)
    )
    assert queue(ledger, load, clock.seconds).total_seconds == 0


def test_who_is_beyond_the_listed_ones_has_computed_nothing() -> None:
    """Until it has been listed, and is no more, or the node lists all that it has."""
    ledger = placed(Clock())
    other = replace(LISTED, num_pending_prompt_tokens=350, queued_prompts=(QueuedPrompt("q", 0, 50),))

    assert ledger.reported("dgx", other, ["p"]) == {"p": 0.0}
    assert ledger.reported("dgx", other, []) == {"p": 0.0}
    listed = replace(other, queued_prompts=(QueuedPrompt("p", 20, 40),))
    assert ledger.reported("dgx", listed, []) == {"p": pytest.approx(0.2)}
    assert ledger.reported("dgx", other, []) == {"p": 1.0}
    assert ledger.reported("dgx", other, []) == {}


def test_many_prompts_beyond_the_listed_ones_are_as_much_work_as_they_are() -> None:
    """A few stand for all: what a decision costs does not grow with them."""
    load = replace(LISTED, num_waiting=5001, num_pending_prompt_tokens=50 + 5000 * 100)

    waiting = queue(PlacementLedger(Clock(), ttl_seconds=10.0), load)

    assert len(waiting.seconds) < 100
    each = cost.prefill_seconds(DGX.shape, DGX.profile, 0, 100)
    assert waiting.total_seconds - waiting.seconds[0] == pytest.approx(5000 * each)


def test_prompts_beyond_the_listed_ones_count_as_equally_long() -> None:
    """A node lists so many; of the others it tells their number and tokens."""
    load = replace(LISTED, num_waiting=4, num_pending_prompt_tokens=50 + 300)

    waiting = queue(PlacementLedger(Clock(), ttl_seconds=10.0), load)

    assert len(waiting.seconds) == 4
    assert waiting.seconds[-1] == cost.prefill_seconds(DGX.shape, DGX.profile, 0, 100)


def test_an_outcome_ends_a_placement() -> None:
    """A request that has finished is work no more."""
    ledger = placed(Clock())

    ledger.settle("p")

    assert ledger.added_to("mac", FREE) == FREE
    assert queue(ledger, FREE).total_seconds == 0


def test_a_placement_that_nobody_takes_up_expires() -> None:
    """A gateway that died between Place and Generate must not fill a node for ever."""
    clock = Clock()
    ledger = placed(clock)

    clock.seconds += 10.0

    assert ledger.added_to("mac", FREE) == FREE
    assert queue(ledger, FREE).total_seconds == 0


def test_a_node_that_left_takes_its_placements_along() -> None:
    """A process that comes back under the same id starts empty."""
    ledger = placed(Clock())

    ledger.forget("mac")

    assert ledger.added_to("mac", FREE) == FREE
    assert ledger.added_to("dgx", FREE).num_waiting == 1


def test_one_placement_tells_no_rate() -> None:
    """A request on an idle cluster expects nobody behind it; two tell how far apart they were."""
    clock = Clock()
    recent = RecentWork(clock)
    recent.add_arrival(2.0)
    recent.add_prompt(0.5)
    clock.seconds += 2.0
    first = (recent.rates().arrivals_per_second, recent.rates().prompts_per_second, recent.rates().prompt_share)
    recent.add_arrival(2.0)
    recent.add_prompt(0.5)

    assert first == (0.0, 0.0, 0.0)
    assert recent.rates().arrivals_per_second == pytest.approx(0.5, rel=0.03)
    assert recent.rates().prompt_share == pytest.approx(0.25, rel=0.03)


def test_recent_work_is_a_rate_from_the_first_placement_on() -> None:
    """What came in the last seconds, and less and less of what came before."""
    clock = Clock()
    recent = RecentWork(clock)
    for _ in range(400):
        clock.seconds += 0.25
        recent.add_arrival(2.0)
        recent.add_prompt(0.1)

    assert recent.rates().arrivals_per_second == pytest.approx(4.0, rel=0.03)
    assert recent.rates().arrival_seconds == pytest.approx(2.0)
    assert recent.rates().prompt_share == pytest.approx(0.4, rel=0.03)
    clock.seconds += 100.0
    assert recent.rates().arrivals_per_second < 0.01
