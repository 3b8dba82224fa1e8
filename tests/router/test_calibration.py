"""What outcomes teach."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from baton.capacity.cost import CostEstimate
from baton.capacity.placement import Candidate
from baton.capacity.planning.pricing import Demand
from baton.router.calibration import (
    DEMAND_SECONDS,
    HALF_LIFE_SECONDS,
    MAX_FACTOR,
    MAX_FACTOR_PER_OUTCOME,
    Calibration,
    ObservedDemand,
    compare,
)
from baton.router.in_flight import PlacedRequest
from router.samples import OUTCOME, Clock


def test_a_steady_ratio_is_learnt() -> None:
    """A node that always takes twice as long as estimated ends near a factor of 2."""
    calibration: Calibration[str] = Calibration(Clock())

    for _ in range(40):
        calibration.add("a", 2.0, 1.0)

    assert calibration.factor("a") == pytest.approx(2.0, rel=0.01)
    assert calibration.factor("b") == 1.0


@given(st.lists(st.floats(1e-9, 1e9), min_size=1, max_size=60))
def test_no_outcome_moves_a_factor_far(ratios: list[float]) -> None:
    """Whatever is reported, the first to a side moves the factor by at most the bound; all stay within theirs."""
    calibration: Calibration[str] = Calibration(Clock())

    before, side = 1.0, 0
    for ratio in ratios:
        calibration.add("a", ratio, 1.0)
        after = calibration.factor("a")
        if (after > before) - (after < before) != side:
            assert 1 / MAX_FACTOR_PER_OUTCOME * 0.999 <= after / before <= MAX_FACTOR_PER_OUTCOME * 1.001
        assert 1 / MAX_FACTOR * 0.999 <= after <= MAX_FACTOR * 1.001
        before, side = after, (after > before) - (after < before)


def test_another_speed_is_learnt_in_four_outcomes_and_one_outlier_teaches_little() -> None:
    """After many that were as estimated, eight times as long, again and again, or once."""
    calibration: Calibration[str] = Calibration(Clock())
    for name in ("turned", "hiccup"):
        for _ in range(40):
            calibration.add(name, 1.0, 1.0)
        calibration.add(name, 8.0, 1.0)
    once = calibration.factor("hiccup")
    for _ in range(3):
        calibration.add("turned", 8.0, 1.0)

    assert once <= MAX_FACTOR_PER_OUTCOME * 1.001
    assert calibration.factor("turned") == pytest.approx(8.0, rel=0.1)


def test_corrections_fade_without_outcomes() -> None:
    """A node that looked slow is tried again: after a half-life half of the correction's logarithm is left."""
    clock = Clock()
    calibration: Calibration[str] = Calibration(clock)
    for _ in range(60):
        calibration.add("a", 4.0, 1.0)

    clock.seconds += HALF_LIFE_SECONDS

    assert calibration.factor("a") == pytest.approx(2.0, rel=0.02)


def test_what_was_faster_than_measured_stays_so() -> None:
    """A link that was probed beside others is not slow again because nobody has used it for a while."""
    clock = Clock()
    calibration: Calibration[str] = Calibration(clock)
    for _ in range(60):
        calibration.add("a", 0.25, 1.0)

    clock.seconds += 10 * HALF_LIFE_SECONDS

    assert calibration.factor("a") == pytest.approx(0.25, rel=0.02)


@pytest.mark.parametrize(("measured", "estimated"), [(0.0, 1.0), (1.0, 0.0), (-1.0, 1.0)])
def test_outcomes_without_a_duration_say_nothing(measured: float, estimated: float) -> None:
    """A missing measurement is not a ratio of 0."""
    calibration: Calibration[str] = Calibration(Clock())

    calibration.add("a", measured, estimated)

    assert calibration.reported("a") == 0.0
    assert calibration.factor("a") == 1.0


def test_who_has_not_been_heard_of_for_longest_is_forgotten_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nodes come and go under other names: what is remembered of them is bounded."""
    monkeypatch.setattr("baton.router.calibration.MAX_KEYS", 2)
    calibration: Calibration[str] = Calibration(Clock())
    for name in ("stays", "gone", "stays", "new"):
        calibration.add(name, 2.0, 1.0)

    assert [name for name in ("stays", "gone", "new") if calibration.has_learnt(name)] == ["stays", "new"]


def test_a_forgotten_node_begins_anew() -> None:
    """A restarted process has measured itself; old corrections are dropped, other nodes' stay."""
    calibration: Calibration[str] = Calibration(Clock())
    calibration.add("a", 2.0, 1.0)
    calibration.add("b", 2.0, 1.0)

    calibration.forget(lambda key: key == "a")

    assert calibration.reported("a") == 0.0
    assert calibration.reported("b") > 1.0


_ESTIMATE = CostEstimate(
    queue_seconds=0.5,
    prefill_seconds=1.0,
    transfer_seconds=0.86,
    exposed_seconds=0.0,
    time_to_first_token_seconds=1.5,
    start_seconds=1.5,
    step_seconds=0.01,
    expected_output_tokens=64.0,
    imposed_seconds=0.0,
)
_PLACED = PlacedRequest(Candidate("mac", "dgx", estimate=_ESTIMATE), 8192, 0.01)
_OUTCOME = replace(
    OUTCOME, queue_seconds=1.0, prefill_seconds=1.5, exposed_seconds=0.1, decode_seconds=1.5, num_completion_tokens=101
)


def test_each_term_is_measured_by_estimated() -> None:
    """The step without the wait for KV; the total for the tokens that came, not for those that were expected."""
    comparison = compare(_PLACED, _OUTCOME)

    assert comparison is not None
    expected = {"queue": 2.0, "prefill": 1.5, "transfer": 1.0, "step": 1.4, "start": 2.6 / 1.5, "total": 4.0 / 2.5}
    assert comparison.ratios == pytest.approx(expected)
    assert comparison.regret_seconds is None


def test_the_wait_to_join_is_part_of_the_start_and_of_no_step() -> None:
    """Else short outputs would make steps look slow."""
    comparison = compare(_PLACED, replace(_OUTCOME, join_seconds=0.4))

    assert comparison is not None
    assert comparison.ratios["start"] == pytest.approx(3.0 / 1.5)
    assert comparison.ratios["step"] == pytest.approx(1.0)


@pytest.mark.parametrize(("start_seconds", "regret"), [(2.0, 1.0), (4.0, 0.0)])
def test_regret_is_what_the_next_best_candidate_would_have_saved(start_seconds: float, regret: float) -> None:
    """Nothing, where it would have been slower still."""
    runner_up = replace(_ESTIMATE, start_seconds=start_seconds)

    comparison = compare(replace(_PLACED, runner_up=runner_up), _OUTCOME)

    assert comparison is not None
    assert comparison.regret_seconds == pytest.approx(regret)


def test_a_local_prefill_has_no_transfer_and_one_token_no_step() -> None:
    """Terms that one side lacks are left out."""
    local = replace(_PLACED, candidate=Candidate("mac", "", estimate=_ESTIMATE))

    comparison = compare(local, replace(_OUTCOME, num_completion_tokens=1))

    assert comparison is not None
    assert set(comparison.ratios) == {"queue", "prefill", "start", "total"}


def test_a_wait_that_is_short_beside_the_rest_is_not_judged() -> None:
    """It is part of a pass: whether a request came early or late in it is not what was estimated."""
    placed = replace(_PLACED, candidate=Candidate("mac", "dgx", estimate=replace(_ESTIMATE, queue_seconds=0.0)))

    short = compare(placed, replace(_OUTCOME, queue_seconds=0.07))
    long = compare(placed, replace(_OUTCOME, queue_seconds=0.15))

    assert short is not None
    assert long is not None
    assert "queue" not in short.ratios
    assert long.ratios["queue"] == pytest.approx(2.0)


@pytest.mark.parametrize(("num_cached_tokens", "is_judged"), [(4800, False), (1600, True)])
def test_a_prefill_of_which_part_came_back_is_not_judged_by_itself(num_cached_tokens: int, *, is_judged: bool) -> None:
    """Copying is part of the measured time; where the node computed it all the same, there was none."""
    candidate = Candidate("mac", "dgx", prefill_cached_tokens=4800, prefill_restored_tokens=3200, estimate=_ESTIMATE)

    comparison = compare(
        replace(_PLACED, candidate=candidate), replace(_OUTCOME, prefill_cached_tokens=num_cached_tokens)
    )

    assert comparison is not None
    assert ("prefill" in comparison.ratios) is is_judged
    assert "total" in comparison.ratios


def test_a_pull_is_judged_by_its_transfer_and_waited_for() -> None:
    """Its time counts in the total, beside the computation of the rest."""
    candidate = Candidate(
        "mac", "", estimate=replace(_ESTIMATE, pull_seconds=0.5, start_seconds=2.0), pull_node_id="pc", pulled_tokens=80
    )
    outcome = replace(
        _OUTCOME, prefill_node_id="mac", pull_node_id="pc", pulled_tokens=80, pull_seconds=1.0, exposed_seconds=0.0
    )

    comparison = compare(replace(_PLACED, candidate=candidate), outcome)

    assert comparison is not None
    assert comparison.ratios == pytest.approx(
        {"queue": 2.0, "prefill": 1.5, "pull": 1.0, "step": 1.5, "start": 3.5 / 2.0, "total": 5.0 / 3.0}
    )
    assert compare(replace(_PLACED, candidate=candidate), replace(outcome, pulled_tokens=48)) is None


@pytest.mark.parametrize(
    "change", [{"fallback_reason": "UNAVAILABLE"}, {"num_preemptions": 1}, {"num_completion_tokens": 0}]
)
def test_what_went_another_way_is_not_judged(change: dict[str, str | int]) -> None:
    """It says nothing of the estimate."""
    assert compare(_PLACED, replace(_OUTCOME, **change)) is None  # type: ignore[arg-type]


def test_demand_is_what_was_asked_of_late_and_fades() -> None:
    """Two requests a second, of which one in four has ended; an hour later nothing is left but what is usual."""
    clock, usual = Clock(), Demand(0.1, 1024, 256)
    demand = ObservedDemand(clock)
    for number in range(3000):
        clock.seconds += 0.5
        demand.add("llama", num_prompt_tokens=100)
        if number % 4 == 0:
            demand.add("llama", num_output_tokens=20)
    busy = demand.of_model("llama", usual)
    clock.seconds += 12 * DEMAND_SECONDS
    idle = demand.of_model("llama", usual)

    assert busy.requests_per_second == pytest.approx(2.0, rel=0.2)
    assert (busy.num_prompt_tokens, busy.num_output_tokens) == (pytest.approx(100, abs=3), pytest.approx(20, abs=3))
    assert idle.requests_per_second < usual.requests_per_second
    assert demand.of_model("other", usual) == usual


def test_one_request_is_no_flood() -> None:
    """The usual demand weighs in until a minute and more has been observed."""
    demand = ObservedDemand(Clock())
    demand.add("llama", num_prompt_tokens=100)

    assert demand.of_model("llama", Demand(0.1, 1024, 256)).requests_per_second == pytest.approx(7 / 60)
