"""Admission by predicted objectives, on a queue that is simulated."""

from __future__ import annotations

from dataclasses import replace
from heapq import heappop, heappush
from random import Random

import pytest

from baton.capacity.cost import CostEstimate
from baton.capacity.objectives import Objectives
from baton.capacity.placement import Candidate, Decision
from baton.router.admission.admitted_work import Asker
from baton.router.admission.control import AdmissionControl, AdmissionLimits, AdmittedRequest, RefusedRequest
from baton.router.settings import RouterSettings
from router.samples import OUTCOME, Clock

SERVICE_SECONDS = 0.2
"""Time that the simulated prefill node takes for a prompt."""
ESTIMATE = CostEstimate(
    queue_seconds=0.0,
    prefill_seconds=SERVICE_SECONDS,
    transfer_seconds=0.01,
    exposed_seconds=0.0,
    time_to_first_token_seconds=SERVICE_SECONDS,
    start_seconds=SERVICE_SECONDS,
    step_seconds=0.02,
    expected_output_tokens=32,
    imposed_seconds=0.0,
)
SLO = Objectives(2.0, 0.05)
NOBODY = Asker()
LOOSE_SLO = Objectives(2.0, 0.1)


def waiting(queue_seconds: float, **changed: float) -> Decision:
    """Return the decision of a request that finds a queue."""
    seconds = queue_seconds + SERVICE_SECONDS
    fields = {"queue_seconds": queue_seconds, "time_to_first_token_seconds": seconds, "start_seconds": seconds}
    return Decision((Candidate("mac", "dgx", estimate=replace(ESTIMATE, **(fields | changed))),))


def local(**changed: float) -> Decision:
    """Return the decision of a request whose prompt the decode node would compute."""
    return Decision((Candidate("mac", "", estimate=replace(ESTIMATE, **changed)),))


def shedding(clock: Clock, objectives: Objectives = SLO) -> AdmissionControl:
    """Return a control that sheds and has one request in flight, as nobody is refused while nothing runs."""
    control = AdmissionControl(clock, AdmissionLimits("shed", objectives))
    place(control, "first", waiting(0.0))
    return control


def place(control: AdmissionControl, name: str, decision: Decision, asker: Asker = NOBODY) -> None:
    """Place a request on its choice."""
    assert decision.choice is not None
    control.ask(asker)
    control.place(name, decision.choice, asker, max_tokens=32)


def test_a_request_that_would_come_too_late_is_told_how_long_the_excess_takes() -> None:
    """One that waits 2.8 s and 0.2 s for itself, with an objective of 2 s, comes in time 1 s later."""
    refused = shedding(Clock()).judge(waiting(2.8), NOBODY)

    assert isinstance(refused, RefusedRequest)
    assert (refused.reason, refused.wait_seconds) == ("OVERLOADED", pytest.approx(1.0))


def test_a_router_that_lets_requests_queue_has_no_admission() -> None:
    """The default."""
    assert RouterSettings().admission() is None
    assert RouterSettings(overload_policy="shed").admission() is not None


def test_a_requests_own_objectives_come_before_the_routers() -> None:
    """Stricter or looser."""
    control = shedding(Clock())

    assert isinstance(control.judge(waiting(1.0), Asker(objectives=Objectives(0.5))), RefusedRequest)
    assert isinstance(control.judge(waiting(9.0), Asker(objectives=Objectives(10.0))), AdmittedRequest)


def test_a_long_prompt_is_held_to_what_it_takes_alone() -> None:
    """It is refused for the queue and not for its length."""
    control = shedding(Clock())
    long = {"prefill_seconds": 10.0, "time_to_first_token_seconds": 10.5, "start_seconds": 10.5}

    assert isinstance(control.judge(waiting(0.5, **long), NOBODY), AdmittedRequest)
    assert isinstance(
        control.judge(waiting(4.0, **(long | {"time_to_first_token_seconds": 14.0})), NOBODY), RefusedRequest
    )


def test_the_first_candidate_that_keeps_the_objectives_is_chosen() -> None:
    """Although another would cost less in all."""
    late, soon = waiting(5.0).candidates[0], replace(waiting(1.0).candidates[0], decode_node_id="mini")

    admitted = shedding(Clock()).judge(Decision((late, soon)), NOBODY)

    assert isinstance(admitted, AdmittedRequest)
    assert admitted.decision.candidates == (soon, late)


def test_nobody_is_refused_where_nothing_runs() -> None:
    """Whatever outcomes have taught: else nothing would teach otherwise."""
    control = AdmissionControl(Clock(), AdmissionLimits("shed", SLO))

    assert isinstance(control.judge(waiting(100.0), NOBODY), AdmittedRequest)


def test_a_batch_is_not_filled_beyond_the_strictest_objective_in_it() -> None:
    """The newcomer itself would be content with slower steps."""
    control, patient = shedding(Clock()), Asker(objectives=Objectives(2.0, 0.5))

    assert isinstance(control.judge(waiting(0.0, step_seconds=0.04), patient), AdmittedRequest)
    refused = control.judge(waiting(0.0, step_seconds=0.1), patient)

    assert isinstance(refused, RefusedRequest)
    assert refused.wait_seconds == pytest.approx(0.5 * 32 * 0.1)


def test_a_prompt_on_the_decode_node_stops_nobody_beyond_its_objective() -> None:
    """31 gaps of 0.05 s at steps of 0.02 s leave 0.93 s: three prompts fit into it and a further one does not."""
    clock = Clock()
    control = shedding(clock)
    clock.seconds += 0.21
    stalling = local(prefill_seconds=0.3, time_to_first_token_seconds=0.3, start_seconds=0.3)
    for number in range(3):
        assert isinstance(control.judge(stalling, NOBODY), AdmittedRequest)
        place(control, f"{number}", stalling)

    assert isinstance(control.judge(stalling, NOBODY), RefusedRequest)


def test_a_prompt_on_the_decode_node_delays_no_first_token_beyond_its_objective() -> None:
    """Of one that waits for 1.5 s and may wait for 2, half a second is to spare."""
    control = AdmissionControl(Clock(), AdmissionLimits("shed", SLO))
    place(control, "waiting", waiting(1.3))
    short, long = (
        local(prefill_seconds=seconds, time_to_first_token_seconds=seconds, start_seconds=seconds)
        for seconds in (0.4, 0.6)
    )

    assert isinstance(control.judge(long, NOBODY), RefusedRequest)
    assert isinstance(control.judge(short, NOBODY), AdmittedRequest)


def test_prompts_of_one_node_wait_for_those_before_them_alone() -> None:
    """A node that computes all its prompts itself fills its queue up to the objective."""
    control = AdmissionControl(Clock(), AdmissionLimits("shed", SLO))
    own = {"prefill_seconds": 0.5}
    for number in range(4):
        queue_seconds = 0.5 * number
        first = local(**own, queue_seconds=queue_seconds, time_to_first_token_seconds=queue_seconds + 0.5)
        assert isinstance(control.judge(first, NOBODY), AdmittedRequest)
        place(control, f"{number}", first)


def test_a_placement_without_an_outcome_is_forgotten() -> None:
    """Its gateway or its node is gone; it would hold the batch's strictest objective for ever."""
    clock = Clock()
    control = shedding(clock)
    clock.seconds += 100
    control.ask(NOBODY)

    assert isinstance(control.judge(waiting(100.0), NOBODY), AdmittedRequest)


def test_one_that_is_never_heard_of_is_forgotten_before_a_long_one() -> None:
    """However long the one runs that was placed before it."""
    clock = Clock()
    control = AdmissionControl(clock, AdmissionLimits("shed", SLO))
    place(control, "long", waiting(0.0, step_seconds=10.0))
    place(control, "ghost", waiting(0.0))
    clock.seconds += 100
    control.ask(NOBODY)

    assert len(control._work.on("mac")) == 1


def test_a_request_cut_short_is_counted_no_longer_and_teaches_nothing() -> None:
    """By a stop string, or by its client: its node tells an outcome without tokens."""
    control = shedding(Clock())

    assert control.settle(replace(OUTCOME, placement_id="first", num_completion_tokens=0)) is None
    assert isinstance(control.judge(waiting(100.0), NOBODY), AdmittedRequest)


def test_what_ran_on_a_node_that_is_gone_is_counted_no_longer() -> None:
    """Its outcomes will not come."""
    control = shedding(Clock())
    control.forget("dgx")
    assert isinstance(control.judge(waiting(100.0), NOBODY), RefusedRequest)

    control.forget("mac")

    assert isinstance(control.judge(waiting(100.0), NOBODY), AdmittedRequest)


def test_an_objective_that_could_not_be_kept_binds_nobody_else() -> None:
    """Whoever asks for a token per 10 us while nothing runs gets what there is, and others come in beside it."""
    control = AdmissionControl(Clock(), AdmissionLimits("shed", SLO))
    place(control, "greedy", waiting(0.0), Asker(objectives=Objectives(2.0, 1e-5)))

    assert isinstance(control.judge(waiting(0.1), NOBODY), AdmittedRequest)


class Simulation:
    """A prefill node on which tenants take turns, and which takes `bias` times as long as predicted."""

    def __init__(self, *, bias: float = 1.0, refuses: bool = True) -> None:
        self.clock = Clock(0.0)
        self.control = AdmissionControl(self.clock, AdmissionLimits("shed", SLO))
        self.refuses = refuses
        self.service_seconds = SERVICE_SECONDS * bias
        self.bias = bias
        self.free_at_seconds = 0.0
        self.served: tuple[str, str, float] | None = None
        self.waiting: list[tuple[float, int, str, str, float]] = []
        self.turn_ends: dict[str, float] = {}
        self.turn = 0.0
        self.num_placed = 0
        self.ttft_seconds: dict[str, list[float]] = {}
        self.num_refused = 0

    def run(self, seconds: float, rates: dict[str, float], seed: int = 1) -> None:
        """Let each tenant's requests come as a Poisson process."""
        random, begin = Random(seed), self.clock.seconds
        arrivals = sorted(
            (begin + at, tenant) for tenant, rate in rates.items() for at in _poisson(random, rate, seconds)
        )
        for number, (at_seconds, tenant) in enumerate(arrivals):
            self.settle_until(at_seconds)
            self.arrive(f"{begin}-{number}", tenant)

    def arrive(self, name: str, tenant: str) -> None:
        """Judge a request now."""
        asker, now = Asker(tenant), self.clock.seconds
        queue_seconds = max(0.0, self.free_at_seconds - now) + len(self.waiting) * self.service_seconds
        self.control.ask(asker)
        decision = waiting(queue_seconds / self.bias)
        verdict = self.control.judge(decision, asker) if self.refuses else AdmittedRequest(decision)
        if isinstance(verdict, RefusedRequest):
            self.num_refused += 1
            self.control.refuse(verdict, asker)
            return
        choice = verdict.decision.choice
        assert choice is not None
        self.control.place(name, choice, asker, max_tokens=32)
        turn = max(self.turn, self.turn_ends.get(tenant, 0.0))
        self.turn_ends[tenant] = turn + 1.0
        self.num_placed += 1
        heappush(self.waiting, (turn, self.num_placed, name, tenant, now))
        self.free_at_seconds = max(self.free_at_seconds, now)
        self.serve()

    def serve(self) -> None:
        """Begin with the next prompt, if the node is free."""
        if self.served is None and self.waiting:
            self.turn, _, name, tenant, arrived_at_seconds = heappop(self.waiting)
            self.served = name, tenant, arrived_at_seconds
            self.free_at_seconds += self.service_seconds

    def settle_until(self, seconds: float) -> None:
        """Report what has ended by then."""
        while self.served is not None and self.free_at_seconds <= seconds:
            name, tenant, arrived_at_seconds = self.served
            self.clock.seconds, self.served = self.free_at_seconds, None
            self.ttft_seconds.setdefault(tenant, []).append(self.clock.seconds - arrived_at_seconds)
            self.control.settle(replace(OUTCOME, placement_id=name, decode_seconds=0.0, num_completion_tokens=1))
            self.serve()
        self.clock.seconds = seconds

    def goodput(self) -> float:
        """Return requests within the objective per second."""
        good = [each for times in self.ttft_seconds.values() for each in times if each <= SLO.ttft_seconds]
        return len(good) / self.clock.seconds


def _poisson(random: Random, rate: float, seconds: float) -> list[float]:
    times = [random.expovariate(rate)]
    while times[-1] < seconds:
        times.append(times[-1] + random.expovariate(rate))
    return times[:-1]


@pytest.mark.parametrize("bias", [0.7, 1.0, 1.5, 2.0])
@pytest.mark.parametrize("load", [2.0, 4.0])
def test_goodput_stays_at_nine_tenths_of_capacity_whatever_the_load(bias: float, load: float) -> None:
    """Also where a prompt takes another time than predicted: the margin is learnt."""
    capacity = 1 / (SERVICE_SECONDS * bias)
    simulation = Simulation(bias=bias)

    simulation.run(120, {"": load * capacity})

    assert simulation.goodput() >= 0.9 * capacity


@pytest.mark.parametrize("load", [1.2, 4.0])
def test_goodput_comes_back_when_a_node_goes_on(load: float) -> None:
    """It stands still for 4 s every 30 s: what that costs is its time, and those who waited for it."""
    simulation, rates = Simulation(), {"": load / SERVICE_SECONDS}
    for number in range(5):
        simulation.run(26, rates, seed=number)
        simulation.free_at_seconds = max(simulation.free_at_seconds, simulation.clock.seconds) + 4.0
        simulation.run(4, rates, seed=100 + number)

    assert simulation.goodput() >= 0.85 * 26 / 30 / SERVICE_SECONDS


def test_queueing_alone_loses_all_goodput() -> None:
    """What the test above is not true of."""
    simulation = Simulation(refuses=False)

    simulation.run(120, {"": 10.0})

    assert simulation.goodput() < 0.2 / SERVICE_SECONDS


def test_a_flood_of_one_tenant_does_not_move_anothers_first_token() -> None:
    """p99 of TTFT at ten times the other's share is at most 1.3 times what it is at the share, and all is admitted."""

    def observed(flood: float) -> Simulation:
        simulation = Simulation()
        simulation.run(30, {"a": flood, "b": 2.0})
        simulation.ttft_seconds.clear()
        simulation.num_refused = 0
        simulation.run(200, {"a": flood, "b": 2.0}, seed=2)
        return simulation

    fair, flooded = observed(2.5), observed(25.0)

    def p99(simulation: Simulation) -> float:
        times = sorted(simulation.ttft_seconds["b"])
        return times[int(0.99 * len(times))]

    assert p99(flooded) <= 1.3 * p99(fair)
    assert len(flooded.ttft_seconds["b"]) >= 0.99 * len(fair.ttft_seconds["b"])
    assert len(flooded.ttft_seconds["a"]) >= 0.9 * (5.0 - 2.0) * 200


def test_equal_floods_have_equal_shares() -> None:
    """Of all that is served."""
    simulation = Simulation()

    simulation.run(120, {"a": 10.0, "b": 20.0})

    first, second = (len(simulation.ttft_seconds[name]) for name in "ab")
    assert 0.88 <= first / second <= 1.14


class HiddenBottleneck:
    """KV lands one request after the other, which takes longer than computing it, and no estimate knows of it."""

    def __init__(self, landing_seconds: float) -> None:
        self.clock = Clock(0.0)
        self.control = AdmissionControl(self.clock, AdmissionLimits("shed", LOOSE_SLO))
        self.landing_seconds = landing_seconds
        self.computed_at_seconds = self.landed_at_seconds = 0.0
        self.pending: list[tuple[float, str, float, float]] = []
        self.num_good_after: list[float] = []

    def run(self, seconds: float, rate: float) -> None:
        """Let requests come as a Poisson process."""
        for number, at_seconds in enumerate(_poisson(Random(3), rate, seconds)):
            self.settle_until(at_seconds)
            self.arrive(str(number))

    def arrive(self, name: str) -> None:
        """Judge a request now, and compute, land and decode it if it is admitted."""
        now = self.clock.seconds
        decision = waiting(max(0.0, self.computed_at_seconds - now))
        self.control.ask(NOBODY)
        verdict = self.control.judge(decision, NOBODY)
        if isinstance(verdict, RefusedRequest):
            return
        choice = verdict.decision.choice
        assert choice is not None
        self.control.place(name, choice, NOBODY, max_tokens=32)
        self.computed_at_seconds = max(self.computed_at_seconds, now) + SERVICE_SECONDS
        self.landed_at_seconds = max(self.landed_at_seconds, self.computed_at_seconds) + self.landing_seconds
        decode_seconds = self.landed_at_seconds - self.computed_at_seconds + 31 * ESTIMATE.step_seconds
        end = self.computed_at_seconds + decode_seconds
        self.pending.append((end, name, self.computed_at_seconds - now, decode_seconds))

    def settle_until(self, seconds: float) -> None:
        """Report what has ended by then."""
        while self.pending and self.pending[0][0] <= seconds:
            self.clock.seconds, name, ttft_seconds, decode_seconds = self.pending.pop(0)
            if ttft_seconds <= SLO.ttft_seconds and decode_seconds / 31 <= LOOSE_SLO.tpot_seconds:
                self.num_good_after.append(self.clock.seconds)
            times = {"prefill_seconds": ttft_seconds, "decode_seconds": decode_seconds}
            self.control.settle(replace(OUTCOME, placement_id=name, num_completion_tokens=32, **times))
        self.clock.seconds = seconds


@pytest.mark.parametrize("load", [2.0, 4.0])
def test_goodput_stays_where_no_estimate_sees_what_is_full(load: float) -> None:
    """Of the second half of ten minutes: the limit on work in flight has been found by then."""
    landing_seconds = 0.3
    hidden = HiddenBottleneck(landing_seconds)

    hidden.run(600, load / landing_seconds)

    num_good = sum(at > 300 for at in hidden.num_good_after)
    assert num_good / 300 >= 0.9 / landing_seconds


def test_a_request_that_is_late_teaches_before_it_ends() -> None:
    """Those behind it are refused by the limit that it leaves; its own outcome counts no more."""
    clock = Clock()
    control = shedding(clock)
    for number in range(5):
        place(control, f"{number}", waiting(0.0))
    clock.seconds += SLO.ttft_seconds + 31 * SLO.tpot_seconds
    control.ask(NOBODY)

    assert isinstance(control.judge(waiting(0.0), NOBODY), RefusedRequest)


def test_a_wait_for_room_counts_as_a_wait_for_the_first_token() -> None:
    """The decode node calls for the prompt once it has room; an exposed transfer comes after the first token."""
    control = shedding(Clock())

    assert isinstance(control.judge(waiting(0.0, start_seconds=3.0), NOBODY), RefusedRequest)
    assert isinstance(control.judge(waiting(0.0, start_seconds=0.9, exposed_seconds=0.7), NOBODY), AdmittedRequest)


def test_a_first_token_is_timed_from_the_placement_on() -> None:
    """A wait that no measured term has makes the margin wider."""
    clock = Clock()
    control = shedding(clock)
    for number in range(20):
        place(control, f"{number}", waiting(1.0))
        clock.seconds += 1.8
        settled = replace(OUTCOME, placement_id=f"{number}", queue_seconds=0.1, prefill_seconds=0.2, decode_seconds=0.0)
        control.settle(replace(settled, num_completion_tokens=1))

    assert isinstance(control.judge(waiting(1.4), NOBODY), RefusedRequest)


def test_a_tenant_finds_no_queue_of_another_that_floods() -> None:
    """Nodes let tenants take turns: it waits for its own, and for as much of others as its weight leaves them."""
    control, b = shedding(Clock()), Asker("b")
    control.ask(b)
    for number in range(9):
        place(control, f"a{number}", waiting(0.2 * number), Asker("a"))
    control.refuse(RefusedRequest("OVERLOADED", wait_seconds=1.0, work_seconds=9.0), Asker("a"))

    admitted = [control.judge(waiting(2.0), each) for each in (b, b._replace(weight=2), Asker("a"))]

    assert isinstance(admitted[2], RefusedRequest)
    found = [each.decision.choice for each in admitted[:2] if isinstance(each, AdmittedRequest)]
    assert [each.estimate.queue_seconds for each in found if each and each.estimate] == pytest.approx([0.4, 0.2])


def test_what_is_refused_of_a_hot_model_leaves_a_cold_one_its_queue() -> None:
    """Of the hot one, nine in ten are refused: nobody may wait there for long, as the nodes have work without that."""
    control, hot, cold = shedding(Clock(), Objectives(10.0)), Asker("a", model="hot"), Asker("a", model="cold")
    for number in range(10):
        place(control, f"hot{number}", waiting(0.2 * number), hot)
        for _ in range(9):
            control.refuse(RefusedRequest("OVERLOADED", 1.0, work_seconds=1.0, prompt_seconds=SERVICE_SECONDS), hot)

    assert isinstance(control.judge(waiting(5.0), hot), RefusedRequest)
    assert isinstance(control.judge(waiting(5.0), cold), AdmittedRequest)


def test_a_tenant_that_floods_one_model_keeps_its_share_of_another() -> None:
    """Beside somebody who asks for both."""
    control, a, b = shedding(Clock()), Asker("a"), Asker("b")
    for model in ("hot", "cold"):
        control.ask(b._replace(model=model))
    for number in range(9):
        place(control, f"a{number}", waiting(0.0), a._replace(model="hot"))
    control.refuse(RefusedRequest("OVERLOADED", wait_seconds=1.0, work_seconds=9.0), a._replace(model="hot"))
    control.ask(a._replace(model="cold"))

    refused = control.judge(waiting(0.5), a._replace(model="hot"))

    assert isinstance(refused, RefusedRequest)
    assert refused.reason == "FAIR_SHARE"
    assert isinstance(control.judge(waiting(0.5), a._replace(model="cold")), AdmittedRequest)
