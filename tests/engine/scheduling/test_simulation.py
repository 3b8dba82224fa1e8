"""The scheduler in virtual time."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from baton.engine.scheduling.admission import SchedulerLimits
from baton.engine.scheduling.step import Step
from baton.errors import OutOfMemoryError
from baton.kv.pool import BlockPool
from engine.scheduling.simulation import SimulatedOutcome, SimulatedRequest, Simulation

BLOCK_TOKENS = 4


def _one_second(step: Step) -> float:
    assert step.spans
    return 1.0


def _run(
    requests: list[SimulatedRequest],
    *,
    num_blocks: int = 64,
    batch_size: int = 8,
    step_tokens: int = 64,
    has_prefix_cache: bool = True,
) -> list[SimulatedOutcome]:
    pool, limits = BlockPool(num_blocks, BLOCK_TOKENS), SchedulerLimits(batch_size, step_tokens)
    simulation = Simulation(requests, pool, limits, _one_second, has_prefix_cache=has_prefix_cache)
    outcomes = simulation.run()
    assert pool.num_available == num_blocks
    return outcomes


def _request(arrival: float, prompt: tuple[int, ...], output: tuple[int, ...]) -> SimulatedRequest:
    return SimulatedRequest(arrival, prompt, output)


def test_a_request_alone_takes_a_pass_for_its_prompt_and_each_further_token() -> None:
    """The prompt's pass gives the first token."""
    (outcome,) = _run([_request(5.0, tuple(range(6)), (7, 8, 9))])

    assert outcome == SimulatedOutcome(0, 5.0, 6.0, 8.0, 0)


def test_a_prompt_longer_than_the_budget_takes_several_passes() -> None:
    """10 positions, 4 in a pass."""
    (outcome,) = _run([_request(0.0, tuple(range(10)), (1,))], step_tokens=4)

    assert outcome.first_token_seconds == outcome.finished_seconds == 3.0


def test_a_next_turn_finds_the_prompt_and_the_answer_before_it() -> None:
    """Blocks of 4: 6 + 3 tokens, of which the last was never computed, are 2 full blocks."""
    first = _request(0.0, tuple(range(6)), (7, 8, 9))
    second = _request(10.0, (*range(6), 7, 8, 9, 30, 31), (1,))

    assert [outcome.cached_token_count for outcome in _run([first, second])] == [0, 8]
    assert [outcome.cached_token_count for outcome in _run([first, second], has_prefix_cache=False)] == [0, 0]


def test_who_comes_to_a_full_batch_waits_for_a_place() -> None:
    """Batch of 1: the second is admitted when the first has ended."""
    first, second = _run([_request(0.0, (1,), (2, 3)), _request(0.5, (4,), (5,))], batch_size=1)

    assert first.finished_seconds == 2.0
    assert (second.admitted_seconds, second.first_token_seconds) == (2.0, 3.0)


def test_a_request_that_can_never_fit_is_refused() -> None:
    """3 blocks of 4 tokens."""
    with pytest.raises(OutOfMemoryError):
        _run([_request(0.0, tuple(range(12)), (1, 2))], num_blocks=3)


def _pass_seconds(step: Step) -> float:
    return 0.01 + 1e-4 * step.num_tokens + 1e-9 * step.num_pairs


def _beside_long_prompts(limits: SchedulerLimits, *, num_long: int) -> tuple[float, float, float]:
    """Return the longest TTFT and TPOT of short requests, and the longest TTFT of long ones."""
    short = [
        SimulatedRequest(0.5 * index, tuple(range(1000 * index, 1000 * index + 200)), tuple(range(50)))
        for index in range(30)
    ]
    long = [
        SimulatedRequest(2.0 * index, tuple(range(-100_000 * (index + 1), -100_000 * index)), (1,))
        for index in range(num_long)
    ]
    outcomes = Simulation([*short, *long], BlockPool(60_000, 16), limits, _pass_seconds).run()
    pairs = list(zip([*short, *long], outcomes, strict=True))
    first = [outcome.first_token_seconds - request.arrival_seconds for request, outcome in pairs]
    pace = [(outcome.finished_seconds - outcome.first_token_seconds) / 49 for outcome in outcomes[: len(short)]]
    return max(first[: len(short)]), max(pace), max(first[len(short) :], default=0.0)


def test_short_requests_do_not_wait_for_long_prompts() -> None:
    """Beside four prompts of 100,000 tokens, 13 s of work each, a short one has its first token within some passes."""
    limits = SchedulerLimits(64, 512)
    alone, _, _ = _beside_long_prompts(limits, num_long=0)
    beside, _, longest = _beside_long_prompts(limits, num_long=4)

    assert alone < 0.1
    assert beside < 0.8
    assert longest < 4 * 25


def test_a_target_for_the_pace_is_kept_beside_long_prompts() -> None:
    """What a pass has time for is learnt on the way; prompts take longer for it, and end."""
    free = SchedulerLimits(64, 512)
    held = replace(free, target_tpot_seconds=0.03)
    _, free_pace, _ = _beside_long_prompts(free, num_long=4)
    first, held_pace, longest = _beside_long_prompts(held, num_long=4)

    assert free_pace > 0.06
    assert held_pace < 0.033
    assert first < 0.8
    assert longest < 4 * 60


_REQUESTS = st.lists(
    st.builds(
        SimulatedRequest,
        st.floats(0, 20),
        st.lists(st.integers(0, 1), min_size=1, max_size=20).map(tuple),
        st.lists(st.integers(0, 1), min_size=1, max_size=8).map(tuple),
    ),
    max_size=12,
)


@settings(max_examples=60, deadline=None)
@given(_REQUESTS, st.integers(7, 30), st.integers(1, 5), st.integers(1, 40), st.booleans())
def test_every_request_ends_in_order_of_its_moments(
    requests: list[SimulatedRequest], num_blocks: int, batch_size: int, step_tokens: int, has_cache: bool
) -> None:
    """Whatever the load: arrival <= admission < first token <= end, and the last position is computed by somebody."""
    outcomes = _run(
        requests,
        num_blocks=num_blocks,
        batch_size=batch_size,
        step_tokens=step_tokens,
        has_prefix_cache=has_cache,
    )

    for request, outcome in zip(requests, outcomes, strict=True):
        assert request.arrival_seconds <= outcome.admitted_seconds < outcome.first_token_seconds
        decode_seconds = outcome.finished_seconds - outcome.first_token_seconds
        assert decode_seconds > len(request.output_token_ids) - 1.001
        has_equal = [other.prompt_token_ids for other in requests].count(request.prompt_token_ids) > 1
        assert outcome.cached_token_count < len(request.prompt_token_ids) + (has_cache and has_equal)


def test_a_target_that_decoding_alone_misses_starves_no_prompt() -> None:
    """Prompts get on as where the target is just within reach, and those who generate lose little by it."""

    def served(target_seconds: float) -> tuple[float, float]:
        requests = [SimulatedRequest(1.1 * index, (*range(index, index + 1000),), (5,) * 40) for index in range(30)]
        limits = SchedulerLimits(16, 512, target_tpot_seconds=target_seconds)
        pool = BlockPool(2048, 16)
        outcomes = Simulation(requests, pool, limits, lambda step: max(0.025, 0.0008 * step.num_tokens)).run()
        pairs = list(zip(requests, outcomes, strict=True))
        waits = [outcome.first_token_seconds - request.arrival_seconds for request, outcome in pairs]
        paces = [(outcome.finished_seconds - outcome.first_token_seconds) / 39 for outcome in outcomes]
        return sum(waits) / len(waits), sum(paces) / len(paces)

    (wait, pace), (wait_without, pace_without) = served(0.01), served(0.0)

    assert wait < 2 * wait_without
    assert pace < pace_without
