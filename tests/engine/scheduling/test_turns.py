"""Turns of tenants."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from baton.engine.request import Purpose
from baton.engine.scheduling.admission import SchedulerLimits
from baton.engine.scheduling.step import Step
from baton.engine.scheduling.turns import MAX_TENANTS, OUTPUT_COST, TenantTurns
from baton.engine.sequence import SUSPECT_TOKENS, Phase
from baton.kv.pool import BlockPool
from engine.rig import GREEDY, prompt_of, request_of
from engine.scheduling.simulation import SimulatedOutcome, SimulatedRequest, Simulation
from engine.stepper import Stepper

PROMPT_TOKENS = 100


def requests(
    tenant: str, arrivals: Sequence[float], *, weight: int = 1, num_outputs: int = 1
) -> list[SimulatedRequest]:
    """Return requests of a tenant, whose prompts share nothing."""
    first = 1000 * ord(tenant)
    return [
        SimulatedRequest(at, (first + number,) * PROMPT_TOKENS, (1,) * num_outputs, tenant=tenant, tenant_weight=weight)
        for number, at in enumerate(arrivals)
    ]


def run(load: list[SimulatedRequest], *, max_batch_size: int = 64) -> list[SimulatedOutcome]:
    """Return what becomes of a load on a node that takes a second for a prompt, ten of its positions in a pass."""
    limits = SchedulerLimits(max_step_tokens=10, max_batch_size=max_batch_size)
    simulation = Simulation(load, BlockPool(16_384, 16), limits, lambda step: step.num_tokens / PROMPT_TOKENS)
    return simulation.run()


def waits(load: list[SimulatedRequest], outcomes: list[SimulatedOutcome], tenant: str) -> list[float]:
    """Return a tenant's times to first token."""
    pairs = zip(load, outcomes, strict=True)
    return [each.first_token_seconds - one.arrival_seconds for one, each in pairs if one.tenant == tenant]


@pytest.mark.parametrize(("max_batch_size", "most_seconds"), [(4, 2.3), (64, 2.3), (256, 1.5)])
def test_who_asks_for_less_than_its_share_does_not_wait_for_a_flood(max_batch_size: int, most_seconds: float) -> None:
    """A prompt takes hardly longer beside it; where the batch is full, one of its prompts has to end first."""
    light = requests("b", [10.0 + 2.5 * number for number in range(20)])
    load = [*requests("a", [0.0] * 200), *light]

    found = waits(load, run(load, max_batch_size=max_batch_size), "b")

    assert max(found) < most_seconds


def test_tenants_share_by_weight() -> None:
    """Three times the weight, three times as many prompts, as long as both have any."""
    load = [*requests("a", [0.0] * 80, weight=3), *requests("b", [0.0] * 80)]
    outcomes = run(load)

    first = [one.tenant for one, each in zip(load, outcomes, strict=True) if each.first_token_seconds <= 60.0]
    assert first.count("a") == pytest.approx(45, abs=2)


def test_one_tenant_alone_is_served_as_if_there_were_none() -> None:
    """In the same order, at the same moments."""
    load = requests("a", [0.3 * number for number in range(60)], num_outputs=5)
    load = [replace(one, priority=-number % 3) for number, one in enumerate(load)]

    assert run(load) == run([replace(one, tenant="", tenant_weight=7) for one in load])


def test_nothing_stands_idle_and_nothing_is_lost_by_turns() -> None:
    """All prompts together take as long as without tenants."""
    load = [*requests("a", [0.0] * 50), *requests("b", [20.0] * 20), *requests("c", [25.0] * 5)]

    ends = [max(each.finished_seconds for each in run(one)) for one in (load, [replace(r, tenant="") for r in load])]
    assert ends[0] == pytest.approx(ends[1])


def test_silence_is_not_saved_up() -> None:
    """Who comes back with a flood gets its share from then on, no more."""
    load = [*requests("b", [0.0]), *requests("a", [1.0] * 150), *requests("b", [50.0] * 60)]
    outcomes = run(load)

    later = [one.tenant for one, each in zip(load, outcomes, strict=True) if 50.0 < each.first_token_seconds <= 90.0]
    assert later.count("a") == pytest.approx(20, abs=2)


def test_places_in_the_batch_are_shared_where_outputs_are_long() -> None:
    """A flood has all of them until another comes; of those that are free from then on, each gets half."""
    load = [*requests("a", [0.0] * 60, num_outputs=300), *requests("b", [20.0] * 20, num_outputs=300)]
    load = [replace(one, prompt_token_ids=one.prompt_token_ids[:2]) for one in load]
    outcomes = run(load, max_batch_size=4)

    order = sorted(zip(outcomes, load, strict=True), key=lambda pair: pair[0].admitted_seconds)
    assert [one.tenant for _, one in order[:4]] == ["a"] * 4
    assert 14 <= [one.tenant for _, one in order[4:36]].count("b") <= 18


def computed(stepper: Stepper) -> Step:
    """Return the next pass, once the device has computed it: nothing is in flight when the next one is planned."""
    step = stepper.step()
    assert step is not None
    step.num_collected = 1
    stepper.scheduler.note_pass(step, 0.01)
    return step


def suspects_beside(tenants: str, num_suspects: int) -> Stepper:
    """Return a scheduler of a node where each tenant has a long output, and the thief some suspected requests."""
    stepper = Stepper(num_blocks=256, max_batch_size=32, max_step_tokens=64)
    long = replace(GREEDY, max_tokens=60, ignore_eos=True)
    for number, tenant in enumerate(tenants):
        stepper.add(request_of(prompt_of(6, number), tenant, long, tenant=tenant))
    computed(stepper)
    for number in range(num_suspects):
        name, prompt = f"thief-{number}", prompt_of(6, 50 + number)
        stepper.add(request_of(prompt, name, long, tenant="thief", is_suspect=True))
    return stepper


@pytest.mark.parametrize(("tenants", "most"), [("a", 20), ("abc", 10), ("abcdefghijklmno", 5)])
def test_suspects_take_their_tenant_s_share_of_passes(tenants: str, most: int) -> None:
    """However many there are: a tenant whose requests fall could have every second pass for itself else."""
    stepper = suspects_beside(tenants, 6)
    alone = [computed(stepper).is_alone for _ in range(40)]

    assert most - 1 <= sum(alone) <= most


def test_a_suspect_shares_passes_again_when_it_is_beyond_its_first_tokens() -> None:
    """It has been alone for them, and for no pass more."""
    stepper = suspects_beside("a", 1)
    passes = [computed(stepper) for _ in range(55)]

    assert sum(each.is_alone for each in passes) == pytest.approx(SUSPECT_TOKENS, abs=1)
    assert len(passes[-1].sequences) == 2


def test_a_suspect_waits_for_no_token_of_a_client_that_is_gone() -> None:
    """Nobody takes it from the device; that the pass is computed is enough."""
    stepper = suspects_beside("a", 0)
    [gone] = stepper.sequences
    in_flight = stepper.scheduler.schedule()
    stepper.scheduler.progress.begin(in_flight)
    suspect = stepper.add(request_of(prompt_of(6, 50), "thief", tenant="thief", is_suspect=True))
    stepper.scheduler.finish(gone)
    in_flight.num_collected = 1

    following = stepper.scheduler.schedule()

    assert in_flight.sequences == [gone]
    assert following.is_alone
    assert following.sequences == [suspect]


def test_a_pass_of_its_own_is_charged_to_the_tenant() -> None:
    """With what the others lose by it: their prompts come before its next ones."""
    stepper = suspects_beside("abc", 1)
    turns = stepper.scheduler._turns
    while not computed(stepper).is_alone:
        pass
    begun = turns._counters["thief"]
    while not computed(stepper).is_alone:
        pass

    assert turns._counters["thief"] - begun >= OUTPUT_COST * 3


def test_who_was_beside_a_pass_that_failed_is_not_charged(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is computed alone until it is beyond that pass; it was another's fault."""
    stepper, charged = suspects_beside("abc", 0), list[str]()
    monkeypatch.setattr(TenantTurns, "charge_others", lambda _turns, each: charged.append(each.request.tenant))
    stepper.scheduler.isolate(computed(stepper))
    alone = [computed(stepper).is_alone for _ in range(12)]

    assert any(alone)
    assert not charged


def test_an_output_is_charged_before_it_exists() -> None:
    """Places would go to one tenant alone until its first outputs have ended; it came with so much less."""
    stepper = suspects_beside("a", 0)

    assert stepper.scheduler._turns._counters["a"] == 0.0


def test_an_output_is_expected_to_be_as_long_as_those_before() -> None:
    """Of requests that got a place: who gave up before has shown nothing of its output."""
    stepper = Stepper(num_blocks=256)
    turns, long = stepper.scheduler._turns, replace(GREEDY, max_tokens=999, ignore_eos=True)
    asking = stepper.add(request_of(prompt_of(6), "asking", long, tenant="a"))
    usual = turns._expected_output_tokens(asking)
    for number in range(20):
        stepper.scheduler.finish(stepper.add(request_of(prompt_of(6, number), f"gone-{number}", long, tenant="b")))
    assert turns._expected_output_tokens(asking) == usual
    stepper.scheduler.finish(asking)
    short = replace(GREEDY, max_tokens=2, ignore_eos=True)
    for number in range(100):
        stepper.add(request_of(prompt_of(3, number), f"short-{number}", short, tenant="ab"[number % 2]))
    while stepper.step():
        pass

    assert turns._expected_output_tokens(stepper.add(request_of(prompt_of(6), "next", long))) == pytest.approx(2, abs=1)


def test_a_suspect_that_needs_many_blocks_gets_them() -> None:
    """However many come who need few: they would take each one that is given back."""
    stepper = Stepper(num_blocks=30, max_batch_size=16, max_step_tokens=64)
    outputs = [replace(GREEDY, max_tokens=10 + 5 * number, ignore_eos=True) for number in range(4)]
    for number in range(20):
        stepper.add(request_of(prompt_of(6, number), f"short-{number}", outputs[number % 4]))
    computed(stepper)
    suspect = stepper.add(request_of(prompt_of(80, 1000), "suspect", outputs[0], is_suspect=True))
    num_passes = 0
    while suspect.phase is not Phase.FINISHED and num_passes < 300:
        if len(stepper.scheduler.waiting) < 10:
            number = len(stepper.sequences)
            stepper.add(request_of(prompt_of(6, number), f"short-{number}", outputs[number % 4]))
        computed(stepper)
        num_passes += 1

    assert num_passes < 150


def test_a_suspect_that_waits_for_its_turn_holds_up_nobody() -> None:
    """Neither who asked after it, nor its own tenant's other requests."""
    stepper = suspects_beside("abc", 1)
    suspect = stepper.sequences[-1]
    while not computed(stepper).is_alone:
        pass
    stepper.scheduler._preempt(suspect)
    behind = stepper.add(request_of(prompt_of(6, 99), "behind", tenant="thief"))

    step = computed(stepper)

    assert not step.is_alone
    assert behind in step.sequences


def test_a_prompt_that_another_node_computes_costs_its_output_alone() -> None:
    """What its tenant is going to be charged decides whose turn it is."""
    stepper = suspects_beside("a", 0)
    receiving = stepper.add(request_of(prompt_of(9), "b", purpose=Purpose.RECEIVE, tenant="b"))
    turns = stepper.scheduler._turns

    assert turns._cost(receiving) == OUTPUT_COST * turns._expected_output_tokens(receiving) > 0


def test_tenants_that_have_not_asked_for_longest_are_forgotten() -> None:
    """Names are clients' to choose: a node would remember ever more of them. Who asks again stays."""
    stepper = Stepper()
    for number in range(MAX_TENANTS + 20):
        for tenant in (f"t{number}", "regular"):
            stepper.scheduler.finish(stepper.add(request_of(prompt_of(3), f"{tenant}-{number}", tenant=tenant)))

    counters = stepper.scheduler._turns._counters
    assert len(counters) == MAX_TENANTS
    assert "regular" in counters
    assert f"t{MAX_TENANTS + 19}" in counters
    assert "t0" not in counters
