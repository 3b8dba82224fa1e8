"""The mock-engine note's engine and what a pass takes."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from baton.capacity.hardware import PRESETS, StepSpan, step_seconds
from baton.capacity.reference_models import LLAMA_65B
from bench.prefix.conversations import Request
from bench.prefix.mock_engine import Outcome, Refill, run_note_engine
from bench.prefix.pass_timing import TIMINGS, WEIGHT_BYTES, NoteTiming, Span, Timing


class _OneSecond:
    name = "one second"

    def step_seconds(self, spans: list[Span]) -> float:
        return 1.0


def _request(arrival: float, num_prompt_tokens: int, num_output_tokens: int) -> Request:
    return Request(arrival, (1,) * num_prompt_tokens, (2,) * num_output_tokens)


def _run(requests: list[Request], cached: list[int], timing: Timing, batch_size: int, refill: Refill) -> list[Outcome]:
    return run_note_engine(requests, cached, timing, batch_size, refill).outcomes


def test_the_note_pads_a_pass_to_its_longest_member() -> None:
    """2 * 468 * 234 / (312 * 1500) + 120 / 2000 = 0.468 + 0.06."""
    assert NoteTiming().step_seconds([Span(468, 1), Span(300, 234)]) == pytest.approx(0.528)


def test_a_prompt_and_a_token_take_what_the_note_says() -> None:
    """100 of 300 tokens cached: 300 * 200 / 468,000 + 0.06, then 301 * 1 / 468,000 + 0.06."""
    (outcome,) = _run([_request(1.0, 300, 2)], [100], NoteTiming(), 4, "slot")

    assert outcome.cached_tokens == 100
    assert outcome.first_token_seconds == pytest.approx(1 + 60_000 / 468_000 + 0.06)
    assert outcome.finished_seconds == pytest.approx(1 + 60_301 / 468_000 + 0.12)


@pytest.mark.parametrize("timing", TIMINGS, ids=lambda timing: timing.name)
@pytest.mark.parametrize("spans", [[Span(1, 1)], [Span(700, 512), Span(2000, 1)], [Span(900, 1)] * 40])
def test_baton_simulate_takes_the_same_time_for_a_pass(timing: Timing, spans: list[Span]) -> None:
    """Both sides of the comparison run on one device."""
    shape = replace(LLAMA_65B, weight_bytes=int(WEIGHT_BYTES))
    parts = [StepSpan(*span) for span in spans]

    theirs = step_seconds("note" if timing.name == "note" else "roofline", PRESETS["a100"], shape, parts)

    assert timing.step_seconds(spans) == pytest.approx(theirs)


def test_a_free_place_is_refilled_at_once_or_with_the_batch() -> None:
    """Two places; the first request takes 1 pass, the second 4, the third waits."""
    requests = [_request(0.0, 5, 1), _request(0.0, 5, 4), _request(0.0, 5, 2)]

    refilled = _run(requests, [0] * 3, _OneSecond(), 2, "slot")
    drained = _run(requests, [0] * 3, _OneSecond(), 2, "batch")

    assert [outcome.finished_seconds for outcome in refilled] == [1.0, 4.0, 3.0]
    assert [outcome.finished_seconds for outcome in drained] == [1.0, 4.0, 6.0]


def test_the_peak_is_what_the_batch_holds_together() -> None:
    """10 and 20 tokens in one pass, 11 and 21 in the next."""
    run = run_note_engine([_request(0.0, 10, 2), _request(0.0, 20, 2)], [0, 0], _OneSecond(), 2, "slot")

    assert run.peak_tokens == 32


_REQUESTS = st.lists(
    st.builds(_request, st.floats(0, 20), st.integers(1, 50), st.integers(1, 10)), min_size=1, max_size=15
).map(lambda requests: sorted(requests, key=lambda request: request.arrival_seconds))


@settings(deadline=None)
@given(_REQUESTS, st.integers(1, 6), st.sampled_from(["slot", "batch"]), st.sampled_from(TIMINGS))
def test_first_come_is_first_served(requests: list[Request], batch_size: int, refill: Refill, timing: Timing) -> None:
    """First tokens come in the order of arrival, after it, and each further token takes a pass."""
    outcomes = _run(requests, [0] * len(requests), timing, batch_size, refill)

    first_tokens = [outcome.first_token_seconds for outcome in outcomes]
    assert first_tokens == sorted(first_tokens)
    for request, outcome in zip(requests, outcomes, strict=True):
        assert outcome.first_token_seconds >= request.arrival_seconds + 0.06
        decode_seconds = outcome.finished_seconds - outcome.first_token_seconds
        assert decode_seconds >= 0.0599 * (len(request.output) - 1)
