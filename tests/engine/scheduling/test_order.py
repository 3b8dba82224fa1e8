"""Turns, and the division of a pass among prompts."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from baton.engine.request import KvExportSpec, Purpose
from baton.engine.scheduling.admission import SchedulerLimits, short_tokens
from baton.engine.scheduling.shares import PromptDemand, reachable_target, share_tokens
from baton.engine.scheduling.step import Step
from baton.engine.sequence import LATE_SECONDS, LEVEL_SECONDS, Sequence, due_seconds
from baton.kv.pool import BlockPool
from baton.router.placer import PlacementIds
from engine.rig import GREEDY, prompt_of, request_of
from engine.scheduling.simulation import SimulatedRequest, Simulation
from engine.stepper import Stepper


@pytest.mark.parametrize(
    ("demands", "num_tokens", "expected"),
    [
        ([], 8, []),
        ([(100, 100, 0)], 8, [8]),
        ([(3, 3, 0)], 8, [3]),
        ([(100, 100, 0), (3, 3, 0)], 40, [37, 3]),
        ([(100, 100, 0), (90, 90, 0)], 40, [40, 0]),
        ([(100, 100, 0), (90, 90, 0), (2, 2, 0)], 40, [38, 0, 2]),
        ([(100, 100, 0), (90, 90, 0), (9, 9, 0), (2, 2, 0)], 40, [36, 0, 4, 0]),
        ([(100, 100, 0), (10, 10, 0)], 2, [1, 1]),
        ([(100, 100, 0), (12, 12, 0)], 2, [2, 0]),
        ([(3, 100, 0), (90, 90, 0), (9, 9, 0)], 40, [3, 33, 4]),
        ([(100, 100, 0), (3, 3, 1)], 40, [40, 0]),
        ([(100, 100, 0), (3, 3, 0)], 1, [1, 0]),
        ([(100, 100, 0), (3, 3, 0)], 0, [0, 0]),
    ],
)
def test_a_tenth_of_a_pass_goes_to_who_is_through_sooner_by_it_and_the_rest_by_turns(
    demands: list[tuple[int, int, int]], num_tokens: int, expected: list[int]
) -> None:
    """A claim is what it can use, what it has left, and its priority."""
    assert share_tokens([PromptDemand(*claim) for claim in demands], num_tokens) == expected


def test_turns_end_with_a_prompt_where_that_is_enough_but_not_the_tenth_of_who_is_through_sooner() -> None:
    """The second one is not begun in the pass that ends the first one."""
    demands = [PromptDemand(*claim) for claim in [(30, 30, 0), (90, 90, 0), (3, 3, 0)]]
    asked = list[tuple[int, int]]()

    def room_behind(num_tokens: int, num_ended: int) -> int:
        asked.append((num_tokens, num_ended))
        return 0

    assert share_tokens(demands, 80, room_behind) == [30, 0, 3]
    assert asked == [(33, 2)]


def test_a_pass_that_is_enough_takes_what_is_free() -> None:
    """Of the second one as much as is computed while the weights are read; the third one gets none of it."""
    demands = [PromptDemand(*claim) for claim in [(30, 30, 0), (90, 90, 0), (40, 40, 0)]]

    assert share_tokens(demands, 200, lambda num_tokens, _: max(0, 41 - num_tokens)) == [30, 11, 0]


def test_who_is_through_by_the_tenth_counts_once() -> None:
    """When its turn comes there is nothing left of it."""
    demands = [PromptDemand(*claim) for claim in [(3, 3, 0), (90, 90, 0), (9, 40, 0), (2, 2, 0)]]
    asked = list[tuple[int, int]]()

    def room_behind(num_tokens: int, num_ended: int) -> int:
        asked.append((num_tokens, num_ended))
        return 120

    assert share_tokens(demands, 120, room_behind) == [3, 90, 9, 2]
    assert asked == [(5, 2), (95, 3)]


@pytest.mark.parametrize(
    ("decode_seconds", "num_waiting", "num_decoding", "expected"),
    [(0.01, 3, 4, 0.03), (0.03, 3, 4, 0.0525), (0.06, 4, 2, 0.18), (0.06, 2, 0, 0.18)],
)
def test_a_target_that_decoding_misses_starves_no_prompt(
    decode_seconds: float, num_waiting: int, num_decoding: int, expected: float
) -> None:
    """What a pass takes more is what those who wait gain by it."""
    assert reachable_target(0.03, decode_seconds, num_waiting, num_decoding) == pytest.approx(expected)


_CLAIMS = st.builds(
    lambda num_pending, chunk, priority: PromptDemand(min(num_pending, chunk), num_pending, priority),
    st.integers(1, 50),
    st.integers(1, 50),
    st.integers(-1, 1),
)


@settings(max_examples=200, deadline=None)
@given(st.lists(_CLAIMS, max_size=6), st.integers(0, 80))
def test_nothing_is_dealt_out_twice_or_left_over(demands: list[PromptDemand], num_tokens: int) -> None:
    """Whoever's turn it is gets nine tenths of the pass; what somebody can use is used."""
    granted = share_tokens(demands, num_tokens)

    assert all(0 <= taken <= claim.num_tokens for taken, claim in zip(granted, demands, strict=True))
    if demands:
        assert granted[0] >= min(demands[0].num_tokens, num_tokens - short_tokens(num_tokens))
    assert sum(granted) == min(num_tokens, sum(claim.num_tokens for claim in demands))


def test_a_level_of_priority_counts_as_waiting() -> None:
    """Who came that much earlier is not overtaken."""
    assert due_seconds(10.0, 0) < due_seconds(10.0, 1) == due_seconds(10.0 + LEVEL_SECONDS, 0)
    assert due_seconds(10.0, -2) == due_seconds(10.0 - 2 * LEVEL_SECONDS, 0)


def test_calls_that_overtake_each_other_are_put_in_the_order_of_their_placements() -> None:
    """Of one router and priority, those without a first token, unless they come too late."""
    ids, foreign = PlacementIds(), PlacementIds().new()
    answered, first, second, third, fourth, fifth, urgent = (ids.new() for _ in range(7))
    stepper = Stepper(64, max_batch_size=3)
    calls = [
        (0.0, answered, 0),
        (0.1, fifth, 0),
        (0.2, foreign, 0),
        (0.3, urgent, 1),
        (0.4, second, 0),
        (0.5, fourth, 0),
        (0.6, third, 0),
        (LATE_SECONDS + 0.25, first, 0),  # all but `urgent` came too long before
    ]
    for stepper.now, placement_id, priority in calls:
        request = request_of(prompt_of(12), placement_id, placement_id=placement_id, priority=priority)
        sequence = stepper.add(request)
        if placement_id is answered:
            sequence.stats.first_token = 0.05
        if placement_id is fifth:
            stepper.step()  # its prompt has begun

    in_turn = sorted(stepper.sequences, key=lambda each: each.queue_key)
    expected = [answered, second, third, fourth, fifth, foreign, first, urgent]
    assert [each.request.placement_id for each in in_turn] == expected


def test_who_was_placed_before_one_that_has_begun_is_next() -> None:
    """Its call came late: the other one has had a pass for it, and gets what the first leaves of the next ones."""
    ids, stepper = PlacementIds(), Stepper(128, max_step_tokens=20)
    first, second, third = (request_of(prompt_of(50, seed), f"r{seed}", placement_id=ids.new()) for seed in (1, 2, 3))
    begun = stepper.add(second)
    assert _dealt(stepper.step()) == [(begun, 20)]

    late, later = stepper.add(first), stepper.add(third)

    assert _dealt(stepper.step()) == [(late, 20)]
    assert later.is_admitted
    assert _dealt(stepper.step()) == [(late, 20)]
    assert _dealt(stepper.step()) == [(late, 10), (begun, 10)]


def test_another_tenants_turn_is_none_of_late_calls() -> None:
    """Tenants take turns by what they have had: a prompt that has begun gives nobody a place before theirs."""
    stepper = Stepper(256, max_batch_size=2, max_step_tokens=20)
    stepper.add(request_of(prompt_of(100, 1), "begun", tenant="a", priority=10))
    stepper.step()
    other = stepper.add(request_of(prompt_of(30, 2), "other", tenant="b"))
    stepper.now = 0.1
    stepper.add(request_of(prompt_of(30, 3), "urgent", tenant="a", priority=-2))

    stepper.step()

    assert other.is_admitted


def test_who_finds_blocks_that_are_not_proven_is_computed_in_the_pass_or_waits() -> None:
    """If the pass in flight fails, who only holds them keeps what was never written: the room is kept for others."""
    stepper = Stepper(128, max_batch_size=8, max_step_tokens=20)
    beginning = list(prompt_of(8, 9))
    for tokens, name in ((beginning, "short"), (prompt_of(100, 1), "begun")):
        stepper.add(request_of(tokens, name))
    in_flight = stepper.scheduler.schedule()
    stepper.scheduler.progress.begin(in_flight)
    long = stepper.add(request_of([*beginning, *prompt_of(60, 2)], "long"))
    newcomer = stepper.add(request_of(prompt_of(2, 3), "newcomer"))

    step = stepper.scheduler.schedule()

    assert newcomer in step.sequences
    assert long not in step.admitted


@pytest.mark.parametrize(
    ("calls", "num_running"),
    [
        ([(0.0, 4.5), (2.0, 5.0), (1.0, 6.0)], 0),
        ([(0.0, 9.2), (7.1, 9.9), (5.1, 10.1), (0.1, 12.0)], 0),
        ([(5.1, 5.1), (0.0, 5.3), (0.1, 10.1)], 1),
    ],
)
def test_who_comes_late_has_its_turn_after_all_that_were_placed_before_it(
    calls: list[tuple[float, float]], num_running: int
) -> None:
    """Whichever of them came when, in milliseconds: placed and come; the first ones are computed already."""
    stepper = Stepper(64, max_batch_size=1)
    for index, (placed, stepper.now) in enumerate(calls):
        placement_id = f"{7:016x}{round(1e6 * placed):016x}"
        stepper.now /= 1e3
        stepper.add(request_of(prompt_of(12), placement_id, placement_id=placement_id))
        if index < num_running:
            stepper.step()

    in_turn = sorted(stepper.sequences, key=lambda each: each.queue_key)
    placement_ids = [each.request.placement_id for each in in_turn]
    assert placement_ids == sorted(placement_ids)


def test_who_was_placed_before_one_that_has_a_token_has_its_turn_when_it_comes() -> None:
    """That one decodes: nothing is to be computed before it."""
    ids, stepper = PlacementIds(), Stepper(64)
    late, answered = ids.new(), ids.new()
    sequences = []
    for stepper.now, placement_id in ((0.0, answered), (1.0, late)):
        sequences.append(stepper.add(request_of(prompt_of(12), placement_id, placement_id=placement_id)))
        sequences[0].stats.first_token = 0.5

    assert [each.queue_key.due_seconds for each in sequences] == [0.0, 1.0]


def test_later_short_prompts_hardly_delay_a_long_one() -> None:
    """Their work together is three times its own; it comes a quarter later at most, and none of them waits for it."""

    def first_tokens(num_later: int) -> list[float]:
        long = SimulatedRequest(0.0, tuple(range(4000)), (1,))
        later = [SimulatedRequest(0.2 * index, (index,) * 40, (1,)) for index in range(1, num_later + 1)]
        limits = SchedulerLimits(max_step_tokens=100, max_batch_size=64)
        simulation = Simulation([long, *later], BlockPool(1024, 16), limits, lambda step: step.num_tokens / 100)
        return [outcome.first_token_seconds for outcome in simulation.run()]

    alone, beside = first_tokens(0), first_tokens(300)

    assert beside[0] < 1.25 * alone[0]
    assert beside[1] < 10.0


@pytest.mark.parametrize(
    ("fixed_seconds", "expected"),
    [
        (0.002, [0.012, 0.024, 0.036, 0.048]),  # 300 positions more take 30 ms; three prompts wait for 2 ms more each
        (0.02, [0.05, 0.05, 0.05, 0.08]),
    ],
)
def test_prompts_that_come_together_are_computed_one_by_one_unless_others_lose_more(
    fixed_seconds: float, expected: list[float]
) -> None:
    """What passes take has been learnt of earlier prompts: 0.1 ms for a position, and what any takes besides."""
    earlier = [SimulatedRequest(index, (index,) * (40 + 7 * index), (1,)) for index in range(40)]
    together = [SimulatedRequest(100.0, (index,) * 100, (1,)) for index in range(40, 44)]
    limits = SchedulerLimits(max_step_tokens=400, max_batch_size=64)
    simulation = Simulation(
        [*earlier, *together], BlockPool(1024, 16), limits, lambda step: fixed_seconds + 1e-4 * step.num_tokens
    )

    first_tokens = [outcome.first_token_seconds - 100.0 for outcome in simulation.run()[len(earlier) :]]

    assert first_tokens == pytest.approx(expected)


def test_a_short_newcomer_has_room_beside_a_long_prompt_where_one_place_is_left() -> None:
    """Nine of ten positions are the long one's until it is computed."""
    stepper = Stepper(num_blocks=32, max_batch_size=2, max_step_tokens=20)
    long = stepper.add(request_of(prompt_of(60, 1), "long"))
    stepper.step()
    short = stepper.add(request_of(prompt_of(2, 2), "short"))

    step = stepper.step()

    assert step is not None
    assert [(each, len(span.token_ids)) for each, span in zip(step.sequences, step.spans, strict=True)] == [
        (long, 18),
        (short, 2),
    ]


def test_nothing_is_kept_for_a_newcomer_that_gets_no_place() -> None:
    """The batch is full: what the pass can hold is the long prompt's."""
    stepper = Stepper(num_blocks=64, max_batch_size=2, max_step_tokens=16)
    sequences = [stepper.add(request_of(prompt_of(100, seed), f"r{seed}")) for seed in (1, 2)]
    stepper.step()
    newcomer = stepper.add(request_of(prompt_of(4, seed=3), "newcomer"))

    step = stepper.step()

    assert step is not None
    assert not newcomer.is_admitted
    assert step.num_tokens == 16
    for sequence in (*sequences, newcomer):
        stepper.scheduler.finish(sequence)


def test_who_has_begun_goes_on_whoever_comes_later() -> None:
    """Else a prompt that has sent its first KV is silent until its turn comes, and is taken for one that hangs."""
    stepper = Stepper(num_blocks=900, max_batch_size=64, max_step_tokens=16)
    computed = dict[Sequence, list[int]]()
    for turn in range(150):
        if turn < 40:
            stepper.add(request_of(prompt_of(40, turn), f"r{turn}", replace(GREEDY, max_tokens=1)))
        if step := stepper.step():
            for sequence in step.sequences:
                computed.setdefault(sequence, []).append(turn)

    assert len(computed) == 40
    assert all(turns == list(range(turns[0], turns[-1] + 1)) for turns in computed.values())


def test_what_is_kept_for_a_short_newcomer_is_not_a_long_ones_that_comes_with_it() -> None:
    """The long ones have their turn after those that are there, and what others leave of a pass."""
    stepper = Stepper(num_blocks=128, max_batch_size=8, max_step_tokens=20)
    first = stepper.add(request_of(prompt_of(60, 1), "first"))
    stepper.step()
    long = [stepper.add(request_of(prompt_of(60, seed), f"long {seed}")) for seed in (2, 3)]
    short = stepper.add(request_of(prompt_of(2, 4), "short"))

    assert _dealt(stepper.step()) == [(first, 18), (short, 2)]
    assert all(each.is_admitted for each in long)
    assert _dealt(stepper.step())[1:] == [(first, 19)]
    stepper.add(request_of(prompt_of(60, 5), "long 5"))
    second = stepper.add(request_of(prompt_of(2, 6), "second"))
    assert _dealt(stepper.step())[1:] == [(first, 3), (long[0], 14), (second, 2)]


def test_what_is_kept_for_a_newcomer_that_cannot_begin_is_the_next_ones() -> None:
    """One that hands its KV out waits for room; who generates here does not."""
    stepper = Stepper(num_blocks=128, max_batch_size=8, max_step_tokens=40)
    first = stepper.add(request_of(prompt_of(240, 1), "first"))
    stepper.step()
    export = KvExportSpec(lambda *_: None, may_begin=lambda: False)
    stepper.add(request_of(prompt_of(8, 2), "export", purpose=Purpose.PREFILL, export=export))
    short = stepper.add(request_of(prompt_of(4, 3), "short"))

    assert _dealt(stepper.step()) == [(first, 36), (short, 4)]
    assert (first, 39) in _dealt(stepper.step()), "beside the other's next token: nothing is kept any more"


def _dealt(step: Step | None) -> list[tuple[Sequence, int]]:
    assert step is not None
    return [(each, len(span.token_ids)) for each, span in zip(step.sequences, step.spans, strict=True)]
