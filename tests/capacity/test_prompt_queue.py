"""How long a prompt waits among others."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from baton.capacity.cost import (
    CLOSED,
    EMPTY_QUEUE,
    SHORT_SHARE,
    OpenPass,
    PromptQueue,
    QueuedWork,
    compute_prompts,
    overtaking,
    prefill_seconds,
    queued_seconds,
    step_seconds,
)
from baton.capacity.hardware import PRESETS
from baton.capacity.snapshot import NodeLoad
from baton.capacity.terms import queue_seconds
from baton.engine.scheduling.step import StepBudget
from capacity.samples import LLAMA_3_1_8B, node


def test_nobody_waits_on_an_idle_node() -> None:
    """Nothing is queued, or nothing is left of it."""
    assert EMPTY_QUEUE.wait_seconds(1.0) == 0.0
    assert PromptQueue.of([0.0, -1.0]) is EMPTY_QUEUE


def test_the_longest_prompt_waits_for_all() -> None:
    """Every other one has less left."""
    assert PromptQueue.of([0.5, 0.25]).wait_seconds(2.0) == 0.75


def test_a_short_prompt_has_a_tenth_of_the_passes_beside_the_first_in_turn() -> None:
    """At a tenth of the node's speed it waits nine times as long as it computes, and ten times for those before it."""
    queue = PromptQueue.of([10.0, 20.0, 0.1])

    assert queue.wait_seconds(1.0) == pytest.approx(10.0)
    assert queue.wait_seconds(0.05) == pytest.approx(1.45)
    assert queue.wait_seconds(5.0) == pytest.approx(30.1)


def test_who_is_not_through_sooner_by_the_tenth_does_not_have_it() -> None:
    """It would delay those before it, and be through with them all the same."""
    assert overtaking([10.0, 2.0, 1.0, 0.1]) == [2, 3]
    assert overtaking([1.0, 10.0, 0.8, 0.8]) == [2]
    assert PromptQueue.of([10.0, 2.0]).sooner_seconds == 0.0


@given(st.lists(st.floats(0.01, 20.0), max_size=8), st.floats(0.0, 30.0), st.floats(0.01, 20.0))
def test_what_a_prompt_waits_for_is_known_when_it_comes(left: list[float], age: float, later: float) -> None:
    """Whoever comes after it takes a tenth at most, and who has something to compute is never idle."""
    alone, beside = list(left), [*left, later]

    idle = compute_prompts(alone, age)
    compute_prompts(beside, age)

    assert idle == pytest.approx(max(0.0, age - sum(left)))
    assert all(after <= before + SHORT_SHARE * age + 1e-9 for before, after in zip(alone, beside, strict=False))


def test_passes_are_waited_for_to_their_end() -> None:
    """What is left on average of one that runs, or is planned, then the one that computes the prompt."""
    assert PromptQueue.of([10.0], pass_seconds=0.4).wait_seconds(0.03) == pytest.approx(0.3 + 0.4 - 0.03)


def queued(hardware: str, *num_tokens: int) -> tuple[list[float], OpenPass]:
    """Return what prompts of so many positions add to a queue, and its last pass."""
    return queued_seconds(LLAMA_3_1_8B, PRESETS[hardware].profile(), [(0, each) for each in num_tokens], 512)


def alone(hardware: str, num_tokens: int) -> float:
    """Return the time of a prompt in passes of its own."""
    return prefill_seconds(LLAMA_3_1_8B, PRESETS[hardware].profile(), 0, num_tokens, 512)


def test_prompts_fill_up_passes_that_reading_the_weights_takes() -> None:
    """On a DGX Spark that is most of any pass, so that 14 prompts of 22 positions share one; on an A100 few do."""
    short, last = queued("dgx-spark", *[22] * 14)
    assert (sum(short), last.num_tokens, last.seconds) == (pytest.approx(alone("dgx-spark", 308)), 308, sum(short))
    both, last = queued("dgx-spark", 732, 265)
    assert (sum(both), last.num_tokens) == (pytest.approx(alone("dgx-spark", 997), rel=0.01), 485)
    assert queued("dgx-spark", 732, 292)[1].num_room_tokens == 0
    assert queued("dgx-spark", 1024)[1] == CLOSED
    assert queued("a100", 732, 292)[0] == [alone("a100", 732), alone("a100", 292)]
    spark = PRESETS["dgx-spark"].profile()
    apart = [alone("dgx-spark", 22)] * 2
    assert queued_seconds(LLAMA_3_1_8B, spark, [(0, 22)] * 2, 0) == (apart, CLOSED)


@pytest.mark.parametrize("hardware", ["dgx-spark", "m3-ultra", "a100"])
@given(num_tokens=st.lists(st.integers(1, 1500), min_size=1, max_size=10))
@example(num_tokens=[66, 59])  # 125 together: 124.6 are free on an A100
def test_a_queue_takes_as_long_as_the_passes_that_the_scheduler_plans(hardware: str, num_tokens: list[int]) -> None:
    """In order of turns, each pass ended as `StepBudget` says."""
    profile, left, expected = PRESETS[hardware].profile(), list(num_tokens), 0.0
    reading, token = alone(hardware, 1), LLAMA_3_1_8B.prefill_flop(0, 512) / profile.prefill_flops / 512
    while left:
        budget = StepBudget(512, min(512, sum(left)), len(left), free_tokens=reading / token)
        num_taken = num_ended = 0
        while left and (room := min(512 - num_taken, budget.room_behind(num_taken, num_ended))) > 0:
            num = min(room, left[0])
            num_taken, left[0] = num_taken + num, left[0] - num
            if not left[0]:
                num_ended += 1
                left.pop(0)
        expected += max(num_taken * token, reading)

    seconds, _ = queued(hardware, *num_tokens)

    assert min(seconds) >= 0
    assert sum(seconds) == pytest.approx(expected, rel=0.05)


def test_a_pass_that_was_planned_takes_nobody_in() -> None:
    """The first prompt of an idle node has its first pass alone; its second pass, others may join in time."""
    spark = PRESETS["dgx-spark"].profile()

    def second(num_tokens: int, came_at: float) -> float:
        prompts = [(0, num_tokens), (0, 200)]
        return queued_seconds(LLAMA_3_1_8B, spark, prompts, 512, came_at_seconds=[0.0, came_at])[0][1]

    assert second(254, 0.001) == second(732, 0.09) == alone("dgx-spark", 200)
    assert second(732, 0.001) == pytest.approx(0.0, abs=0.001)


def test_who_comes_next_fills_up_the_last_pass() -> None:
    """If that is not planned yet: what it takes while the weights are read needs no time of its own."""
    (seconds,), last = queued("dgx-spark", 732)
    spark = replace(node("p", "prefill", "dgx-spark"), max_step_tokens=512)

    def waits(num_tokens: int, left: float) -> float:
        queue = PromptQueue.of([left], spark.prefill_seconds(0, 512), last)
        return queue_seconds(replace(spark, queue=queue), spark.prefill_seconds(0, num_tokens), num_tokens)

    assert waits(512 + 265, seconds) == pytest.approx(seconds - alone("dgx-spark", 1), rel=0.01)
    assert waits(512 + 300, seconds) == seconds
    assert waits(512 + 265, 0.09) == pytest.approx(0.09)
    work, last = queued("dgx-spark", 900, 22)  # the second adds nothing
    assert QueuedWork(work, last_pass=last).at(0.0).last_pass.num_tokens == 410


def test_a_reported_queue_ages_as_the_engine_deals_passes_out() -> None:
    """A tenth of the time goes to who is through sooner, the rest to the first in turn; what is left over goes on."""
    assert QueuedWork([10.0, 2.0]).at(1.0).seconds == pytest.approx((9.0, 2.0))
    assert QueuedWork([10.0, 1.0]).at(1.0).seconds == pytest.approx((9.1, 0.9))
    assert QueuedWork([10.0, 1.0], 5.0, [(0.1, 6.5)]).at(7.0).seconds == pytest.approx((8.2, 0.8, 0.1))
    assert QueuedWork([10.0, 1.0]).at(2.0, pace=0.5).seconds == pytest.approx((9.1, 0.9))
    assert QueuedWork([1.0, 2.0]).at(10.0) is EMPTY_QUEUE


def test_what_was_placed_is_computed_after_what_was_listed() -> None:
    """And not before it was placed."""
    assert QueuedWork([1.0], 8.0, [(3.0, 8.5)]).at(10.0).seconds == (2.0,)
    assert QueuedWork([], 1.0, [(3.0, 9.5)]).at(10.0).seconds == (2.5,)


def test_placed_prompts_are_computed_one_after_the_other() -> None:
    """A node that was idle before they came has computed no more of them together than time has passed."""
    assert QueuedWork([], 1.0, [(3.0, 9.5), (3.0, 9.5)]).at(10.0).total_seconds == 5.5


@pytest.mark.parametrize(("num_decoding", "num_exports", "num_steps"), [(2, 0, 1), (0, 0, 1), (0, 1, 0)])
def test_who_comes_when_the_last_pass_of_a_queue_is_nearly_over_waits_for_the_step_that_is_planned(
    num_decoding: int, num_exports: int, num_steps: int
) -> None:
    """Who is computed there decodes in it, if nobody else does; a node that hands its prompts over plans none."""
    load = NodeLoad(
        num_running=max(1, num_decoding),
        num_decoding=num_decoding,
        num_exports=num_exports,
        num_free_blocks=1000,
        mean_context_tokens=500.0,
    )
    spark = node("spark", "worker", "dgx-spark", load=load)
    step = step_seconds(spark.shape, spark.profile, max(1, num_decoding), 500.0)
    own = spark.prefill_seconds(0, 700)
    for left, num_more in ((0.019, num_steps), (0.021, 0)):
        queue = PromptQueue.of([left], pass_seconds=0.1)
        assert queue_seconds(replace(spark, queue=queue), own, 700) == pytest.approx(left + num_more * step)


def test_who_comes_before_a_short_queue_has_begun_does_not_wait_for_a_step() -> None:
    """Its only pass takes less than a full one: what is left of it is all of it."""
    load = NodeLoad(num_running=2, num_decoding=2, num_free_blocks=1000, mean_context_tokens=500.0)
    ultra = replace(node("ultra", "worker", "m3-ultra", load=load), max_step_tokens=8192)
    (left,), last = queued_seconds(ultra.shape, ultra.profile, [(0, 600)], 8192)
    queue = PromptQueue.of([left], ultra.prefill_seconds(0, 8192), last)

    waiting = queue_seconds(replace(ultra, queue=queue), ultra.prefill_seconds(0, 7000), 7000)

    assert left < 0.2 * queue.pass_seconds
    assert waiting <= left
