"""What passes cost, learnt from their times."""

from __future__ import annotations

import math
from random import Random

import pytest

from baton.engine.step_cost import HUNG_FACTOR, MIN_PROMPT_TOKENS, StepCost, StepCostModel, StepWork

COST = StepCost(fixed_seconds=0.02, token_seconds=1e-4, pair_seconds=2e-9)
DECODE = StepWork(10, 10_000)
"""Takes 21.02 ms."""


@pytest.mark.parametrize(
    ("cost", "work", "target_seconds", "context_tokens", "expected"),
    [
        (StepCost(0.02, 1e-4, 0.0), StepWork(10, 0), 0.031, 0, 100),
        (StepCost(0.02, 1e-4, 0.0), StepWork(10, 0), 0.031, 50_000, 100),
        (COST, DECODE, 0.03102, 0, 99.9),
        (COST, DECODE, 0.03102, 50_000, 49.99),
        (COST, DECODE, 0.0, 0, MIN_PROMPT_TOKENS),
        (COST, DECODE, 0.02, 0, MIN_PROMPT_TOKENS),
        (StepCost(0.02, 0.0, 2e-6), StepWork(0, 0), 0.03, 0, 100),
        (StepCost(0.02, 0.0, 0.0), StepWork(10, 0), 0.03, 0, math.inf),
    ],
)
def test_a_pass_takes_as_much_of_a_prompt_as_its_time_allows(
    cost: StepCost, work: StepWork, target_seconds: float, context_tokens: int, expected: float
) -> None:
    """And always a little, so that prompts get on."""
    affordable = cost.affordable_tokens(work, target_seconds, context_tokens)

    assert affordable == pytest.approx(expected, rel=1e-3)
    if MIN_PROMPT_TOKENS < affordable < math.inf:
        end = context_tokens + affordable
        prompt_seconds = cost.token_seconds * affordable + cost.pair_seconds * affordable * (context_tokens + end) / 2
        assert cost.seconds(work) + prompt_seconds == pytest.approx(target_seconds)


def test_costs_are_learnt_from_passes_and_stay_through_a_time_without_prompts() -> None:
    """Also where measurements scatter; a single pause counts little."""
    random, costs = Random(1), StepCostModel()
    for index in range(200):
        num_decodes, has_prompts = random.randint(1, 32), index % 3 == 0
        work = StepWork(num_decodes, num_decodes * random.randint(100, 4000))
        if has_prompts:
            num_tokens, context = random.choice([128, 512]), random.randint(0, 60_000)
            work = StepWork(work.num_tokens + num_tokens, work.num_pairs + num_tokens * context)
        costs.note(work, COST.seconds(work) * random.uniform(0.95, 1.05), has_prompts=has_prompts)
    for _ in range(2000):
        costs.note(DECODE, COST.seconds(DECODE), has_prompts=False)
    costs.note(DECODE, 30.0, has_prompts=False)

    assert costs.cost is not None
    assert costs.cost.seconds(DECODE) == pytest.approx(COST.seconds(DECODE), rel=0.2)
    assert costs.cost.token_seconds == pytest.approx(COST.token_seconds, rel=0.2)
    assert costs.cost.pair_seconds == pytest.approx(COST.pair_seconds, rel=0.2)


def test_passes_that_are_all_alike_are_foretold() -> None:
    """However the time is divided among the terms: none is negative."""
    costs = StepCostModel()
    for _ in range(100):
        costs.note(DECODE, 0.02, has_prompts=False)

    assert costs.cost is not None
    assert costs.cost.seconds(DECODE) == pytest.approx(0.02, rel=1e-3)
    assert min(costs.cost.fixed_seconds, costs.cost.token_seconds, costs.cost.pair_seconds) >= 0.0


def test_a_node_that_becomes_faster_is_seen_to_be_so() -> None:
    """Old measurements fade."""
    costs = StepCostModel()
    for seconds in (0.1,) * 100 + (0.01,) * 100:
        costs.note(DECODE, seconds, has_prompts=False)

    assert costs.cost is not None
    assert costs.cost.seconds(DECODE) == pytest.approx(0.01, rel=0.1)


def test_a_clock_that_stands_still_measures_nothing() -> None:
    """Nothing is known of such passes."""
    costs = StepCostModel()

    costs.note(DECODE, 0.0, has_prompts=True)

    assert costs.cost is None


def test_a_pass_hangs_after_a_multiple_of_what_its_like_have_taken() -> None:
    """The first ones of a kind and size are not judged; while passes take longer than usual, a longer one hangs not."""
    costs, longer = StepCostModel(), StepWork(10, 40_000)
    judged = []
    for _ in range(5):
        judged.append(costs.longest_seconds(DECODE, has_prompts=False))
        costs.note(DECODE, 3.0, has_prompts=False)

    assert judged == [math.inf] * 4 + [pytest.approx(3.0 * HUNG_FACTOR, rel=0.01)]
    assert costs.longest_seconds(longer, has_prompts=False) == math.inf
    assert costs.longest_seconds(DECODE, has_prompts=True) == math.inf
    costs.note(DECODE, 9.0, has_prompts=False)
    assert costs.longest_seconds(DECODE, has_prompts=False) > 9.0 * HUNG_FACTOR
    for _ in range(200):
        costs.note(DECODE, 3.0, has_prompts=False)
    assert costs.longest_seconds(DECODE, has_prompts=False) == pytest.approx(3.0 * HUNG_FACTOR, rel=0.01)


def test_of_a_prompts_pass_no_more_is_expected_than_others_took_in_proportion() -> None:
    """Decode steps say nothing of prompts; nor do two passes say what one ten times as large takes by their slope."""
    costs = StepCostModel()
    work = StepWork(100, 5e3)
    assert costs.expected_seconds(work, has_prompts=True) == 0.0
    costs.note(DECODE, 0.01, has_prompts=False)
    assert costs.expected_seconds(work, has_prompts=True) == 0.0

    costs.note(work, 1.0, has_prompts=True)
    costs.note(StepWork(100, 6e3), 2.0, has_prompts=True)

    assert 0.9 < costs.expected_seconds(work, has_prompts=True) < 1.6
    assert 10.0 < costs.expected_seconds(StepWork(1000, 5e6), has_prompts=True) < 16.0


def test_the_shortest_pass_reads_the_weights() -> None:
    """Passes that all compute more say nothing of it: a line through them would."""
    costs = StepCostModel(least_seconds=0.25)
    for num_tokens in (60, 80, 100):
        costs.note(StepWork(num_tokens, 0.0), 0.006 * num_tokens, has_prompts=True)

    assert costs.cost is not None
    assert costs.cost.seconds(StepWork(14, 0.0)) == 0.25
    assert costs.cost.seconds(StepWork(14, 0.0), num_passes=2) == 0.5
    assert costs.cost.seconds(StepWork(50, 0.0)) == pytest.approx(0.3, rel=0.01)


def test_prompts_that_take_no_longer_than_the_weights_are_free() -> None:
    """A device of slow memory computes a full pass while it reads; steps, which read KV, are no measure of prompts."""
    costs = StepCostModel(least_seconds=0.1, pass_tokens=512)
    for num_sequences in (4, 8, 4, 8):
        costs.note(StepWork(num_sequences, 2000.0 * num_sequences), 0.1 + 0.001 * num_sequences, has_prompts=False)
    for num_tokens in (16, 40, 300):
        costs.note(StepWork.of_span(1000, 1000 + num_tokens), 0.104, has_prompts=True)

    assert costs.cost is not None
    assert costs.cost.seconds(StepWork.of_span(2000, 2512)) == pytest.approx(0.1)
    assert costs.cost.prompt_seconds(0, 512) == pytest.approx(0.1)
    assert costs.cost.tokens_beside(StepWork(8, 16_000.0)) == pytest.approx((0.0, 512.0))


def test_a_prompt_that_takes_longer_says_what_positions_take() -> None:
    """Once one does, nothing is taken to be free that is not."""
    costs = StepCostModel(least_seconds=0.1, pass_tokens=512)
    costs.note(StepWork(16, 0.0), 0.104, has_prompts=True)
    costs.note(StepWork(512, 0.0), 0.512, has_prompts=True)

    assert costs.cost is not None
    assert costs.cost.seconds(StepWork(512, 0.0)) == pytest.approx(0.512, rel=0.01)
    assert costs.cost.tokens_beside(StepWork(8, 0.0))[1] < 512


@pytest.mark.parametrize("seconds", [[1.0], [0.104, 0.4]])
def test_a_pause_is_not_what_positions_take(seconds: list[float]) -> None:
    """Passes that end with each prompt, for positions seem to take long, would never show that they do not."""
    costs = StepCostModel(least_seconds=0.1, pass_tokens=512)
    for each in (*seconds, 0.104):
        costs.note(StepWork(40, 0.0), each, has_prompts=True)

    assert costs.cost is not None
    assert costs.cost.tokens_beside(StepWork(8, 0.0))[1] == pytest.approx(512)


def test_a_pass_that_was_over_before_the_host_looked_refutes_nothing() -> None:
    """What the host was late for counts for the pass before; none takes less than reading the weights."""
    costs = StepCostModel(least_seconds=0.1, pass_tokens=512)
    for _ in range(8):
        costs.note(StepWork(512, 0.0), 0.512, has_prompts=True)
    costs.note(StepWork(464, 0.0), 0.002, has_prompts=True)

    assert costs.cost is not None
    assert costs.cost.seconds(StepWork(512, 0.0)) == pytest.approx(0.512, rel=0.01)


@pytest.mark.parametrize("has_prompts", [True, False])
def test_what_a_pass_takes_at_least_is_learnt_where_the_host_looks_when_it_should_be_over(has_prompts: bool) -> None:
    """A small pass takes less than the line through large ones says, and its device does not tell when it is over."""
    costs = StepCostModel(least_seconds=0.1)
    for num_tokens in (256, 512):
        costs.note(StepWork(num_tokens, 0.0), 0.1 + 0.001 * num_tokens, has_prompts=has_prompts)
    work, taken_seconds = StepWork(64, 0.0), 0.11

    looked = list[float]()
    for _ in range(4):
        looked.append(0.95 * costs.expected_seconds(work, has_prompts=has_prompts, at_least=True))
        is_late = looked[-1] > taken_seconds
        costs.note(work, max(taken_seconds, looked[-1]), has_prompts=has_prompts, is_late=is_late)

    assert looked[0] > 1.4 * taken_seconds, "the test is of a pass that takes less than expected"
    assert max(looked[1:]) <= taken_seconds < 1.5 * min(looked[2:])
    assert costs.expected_seconds(work, has_prompts=has_prompts) > looked[-1]


def test_a_prompt_alone_takes_full_passes_and_a_last_one() -> None:
    """None takes less than reading the weights, however few positions are left for the last."""
    cost = StepCost(0.0, 0.001, 0.0, least_seconds=0.25)
    with_pairs = StepCost(0.0, 0.0, 0.001)

    assert [cost.alone_seconds(100, 100 + num, 500) for num in (0, 80, 500, 580, 1400)] == pytest.approx(
        [0.0, 0.25, 0.5, 0.75, 1.4]
    )
    assert with_pairs.alone_seconds(100, 880, 500) == pytest.approx(0.001 * (880**2 - 100**2) / 2)
