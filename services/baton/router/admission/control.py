"""Whether a request that can be placed is: by what it and those that run would get, and by what tenants have had.

`AdmissionControl.judge` decides without changing anything; what is decided is told to it, and what became of it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Literal, NamedTuple

from baton.capacity.cost import CostEstimate
from baton.capacity.objectives import Objectives
from baton.capacity.placement import Candidate, Decision
from baton.router.admission.admitted_work import AdmittedWork, Asker, Prediction, computing_node_id, work_seconds
from baton.router.admission.margin import relied_on
from baton.router.admission.tenants import ABOVE_SHARE, BELOW_SHARE, TenantShares
from baton.router.admission.work_limit import OfferedWork
from baton.router.nodes import Outcome

OverloadPolicy = Literal["queue", "shed", "degrade"]
"""What becomes of a request that would miss its objectives."""
RefusalReason = Literal["OVERLOADED", "FAIR_SHARE"]
"""Why a request is refused: its objectives or those of others, or what its tenant has had."""

MAX_JUDGED = 16
"""Candidates looked at, in order of preference: the first that keeps the objectives is taken."""
ALONE_FACTOR = 1.2
"""An objective that a prompt cannot meet alone counts as so many times what it takes alone: it is not refused for
its length."""
OVER_SHARE_QUEUE = 0.1
"""A tenant above its share may wait so much of the objective, or as long as its own prompt takes: enough that nothing
stands idle, too little for others to notice."""
OVER_SHARE_TPOT = 0.9
"""The share of the objective of time per output token, and of a node's limit, up to which a tenant above its share may
fill a batch."""


@dataclass(frozen=True, slots=True)
class AdmissionLimits:
    """Policy and objectives of the router."""

    policy: Literal["shed", "degrade"] = "shed"
    """What becomes of a request that would miss its objectives."""
    objectives: Objectives = Objectives()
    """Of requests that bring none."""
    degraded_max_tokens: int = 64
    """Output tokens of a degraded request at most."""
    degraded_slo_factor: float = 2.0
    """How many times its objectives a degraded request may take before it is refused, 1 or more."""


class AdmittedRequest(NamedTuple):
    """A request that is placed."""

    decision: Decision
    """With the candidate that keeps the objectives as its choice."""
    max_tokens: int = 0
    """Output that it is cut to; 0: as asked."""


class RefusedRequest(NamedTuple):
    """A request that is not."""

    reason: RefusalReason
    wait_seconds: float
    """Predicted time until one of its size would be placed, above 0."""
    work_seconds: float
    """What it would have taken."""
    prompt_seconds: float = 0.0
    """Part of it for its prompt."""


class _Demand(NamedTuple):
    """What is asked for of one model."""

    tenants: TenantShares
    offered: OfferedWork


class AdmissionControl:
    """Judges decisions by their predictions, corrected by margins learnt from outcomes, and by tenants' shares.

    Models share nothing but their nodes: what is refused of one neither shortens the queue of another nor counts for a
    tenant's share there. What it remembers is bounded by `AdmittedWork`, and for each model by `TenantShares`. A router
    that lets requests queue has none.
    """

    def __init__(self, clock: Callable[[], float], limits: AdmissionLimits) -> None:
        self._clock = clock
        self.limits = limits
        """What it was made with."""
        self._demands: dict[str, _Demand] = {}
        self._work = AdmittedWork(clock)

    def judge(self, decision: Decision, asker: Asker, *, is_degraded: bool = False) -> AdmittedRequest | RefusedRequest:
        """Return whether a request is placed, and on which candidate; changes nothing. O(requests in flight).

        `is_degraded`: its output is cut already, and its objectives are longer for it.
        """
        found = [candidate for candidate in islice(decision.candidates, MAX_JUDGED) if candidate.estimate]
        demand = self._demand(asker)
        share = demand.tenants.share(asker.tenant)
        feasible = found if share >= BELOW_SHARE else [self._in_turn(candidate, asker) for candidate in found]
        if not any(self._work.on(each.decode_node_id) for each in feasible):
            return AdmittedRequest(decision)  # whoever stands idle is not overloaded, whatever the margins say
        objectives = _reachable(self._objectives(asker, is_degraded=is_degraded), feasible)
        useful_seconds = demand.offered.useful_queue_seconds()
        waits = [self._wait(candidate, objectives, share, useful_seconds) for candidate in feasible]
        first = next((index for index, wait in enumerate(waits) if wait.seconds <= 0), None)
        if first is not None:
            others = [candidate for candidate in decision.candidates if candidate is not found[first]]
            return AdmittedRequest(replace(decision, candidates=(feasible[first], *others)))
        shortest = min(range(len(waits)), key=lambda index: waits[index].seconds)
        estimate = feasible[shortest].estimate
        assert estimate is not None
        work, prompt = work_seconds(feasible[shortest]), estimate.prefill_seconds
        return RefusedRequest(waits[shortest].reason, waits[shortest].seconds, work, prompt)

    def ask(self, asker: Asker) -> None:
        """Note that somebody asks, before it is judged."""
        self._work.look()
        self._demand(asker).tenants.ask(asker.tenant, asker.weight)

    def refuse(self, refused: RefusedRequest, asker: Asker) -> None:
        """Note a refusal."""
        demand = self._demand(asker)
        demand.tenants.refuse(asker.tenant, refused.work_seconds)
        demand.offered.add(refused.prompt_seconds, is_admitted=False)

    def place(
        self, placement_id: str, choice: Candidate, asker: Asker, *, max_tokens: int, is_degraded: bool = False
    ) -> None:
        """Note a placement, until its outcome."""
        if choice.estimate is not None:
            demand = self._demand(asker)
            demand.tenants.admit(asker.tenant, work_seconds(choice))
            demand.offered.add(choice.estimate.prefill_seconds, is_admitted=True)
            objectives = self._objectives(asker, is_degraded=is_degraded)
            self._work.place(placement_id, choice, asker, objectives, max_tokens=max_tokens)

    def settle(self, outcome: Outcome) -> Prediction | None:
        """Learn from the outcome of a placement; return the margins of its nodes, None where it teaches nothing."""
        return self._work.settle(outcome)

    def forget(self, node_id: str) -> None:
        """Count nothing more on a node that is gone, or has started again."""
        self._work.forget(node_id)

    def _demand(self, asker: Asker) -> _Demand:
        if asker.model not in self._demands:
            self._demands[asker.model] = _Demand(TenantShares(self._clock), OfferedWork(self._clock))
        return self._demands[asker.model]

    def _in_turn(self, candidate: Candidate, asker: Asker) -> Candidate:
        """Return a candidate with the wait of a tenant that has had less than its share: nodes let it pass others."""
        estimate = candidate.estimate
        assert estimate is not None
        prompt_seconds, queue_seconds = estimate.prefill_seconds, estimate.queue_seconds
        turn_seconds = self._work.turn_seconds(computing_node_id(candidate), asker, prompt_seconds, queue_seconds)
        less_seconds = queue_seconds - turn_seconds
        shorter = replace(
            estimate,
            queue_seconds=turn_seconds,
            time_to_first_token_seconds=estimate.time_to_first_token_seconds - less_seconds,
            start_seconds=estimate.start_seconds - less_seconds,
        )
        return replace(candidate, estimate=shorter)

    def _objectives(self, asker: Asker, *, is_degraded: bool) -> Objectives:
        objectives = asker.objectives.over(self.limits.objectives)
        return objectives.scaled(self.limits.degraded_slo_factor) if is_degraded else objectives

    def _wait(self, candidate: Candidate, objectives: Objectives, share: float, useful_seconds: float) -> _Wait:
        """Return how long to wait until a candidate would keep all objectives; 0 or less: it does.

        `useful_seconds`: the longest queue that is of use.
        """
        estimate = candidate.estimate
        assert estimate is not None
        margin = self._work.margin(computing_node_id(candidate), candidate.decode_node_id)
        predicted = Prediction.of(estimate)
        ttft = 0.0
        if objectives.ttft_seconds:
            seconds = relied_on(predicted.ttft_seconds, margin.ttft_seconds, objectives.ttft_seconds)
            ttft = seconds - objectives.ttft_seconds
            if share >= BELOW_SHARE:
                ttft = max(ttft, estimate.queue_seconds - useful_seconds)
        others = self._work.on(candidate.decode_node_id)
        tpot_seconds = margin.tpot_seconds * predicted.tpot_seconds
        tpot = _batch_wait(estimate, tpot_seconds, objectives.tpot_seconds)
        step_seconds = margin.tpot_seconds * estimate.step_seconds
        tightest = min((each.objectives.tpot_seconds for each in others if each.objectives.tpot_seconds), default=0.0)
        tpot = max(tpot, _batch_wait(estimate, step_seconds, tightest))
        wait = max(ttft, tpot, self._stall_wait(candidate, step_seconds), self._limit_wait(candidate, 1.0))
        if wait > 0 or share <= ABOVE_SHARE:
            return _Wait("OVERLOADED", wait)
        own_seconds = predicted.ttft_seconds - estimate.queue_seconds
        if objectives.ttft_seconds:
            wait = estimate.queue_seconds - max(own_seconds, OVER_SHARE_QUEUE * objectives.ttft_seconds)
        wait = max(wait, _batch_wait(estimate, tpot_seconds, OVER_SHARE_TPOT * objectives.tpot_seconds))
        wait = max(wait, self._limit_wait(candidate, OVER_SHARE_TPOT))
        return _Wait("FAIR_SHARE", wait)

    def _limit_wait(self, candidate: Candidate, share: float) -> float:
        """Return the time until so much has ended that a share of the node's limit has room for a request."""
        estimate, limit = candidate.estimate, self._work.limit_of(candidate.decode_node_id)
        assert estimate is not None
        own_seconds, in_flight_seconds = work_seconds(candidate), self._work.seconds_on(candidate.decode_node_id)
        if limit is None or not in_flight_seconds:
            return 0.0
        if limit.allows(in_flight_seconds / share, own_seconds / share, self._clock()):
            return 0.0
        excess_seconds = in_flight_seconds + own_seconds - share * limit.seconds
        return min(1.0, excess_seconds / in_flight_seconds) * (estimate.start_seconds + estimate.decode_seconds)

    def _stall_wait(self, candidate: Candidate, step_seconds: float) -> float:
        """Return how long to wait until nobody on the computing node would be stopped for longer than it can bear.

        A prompt that is computed where others decode stops their tokens, and the first ones of those whose prompts
        are computed elsewhere: what has come for them is seen between two passes. Prompts here are before this one.
        """
        estimate, now, wait = candidate.estimate, self._clock(), 0.0
        assert estimate is not None
        for each in self._work.on(computing_node_id(candidate)):
            if each.first_token_at_seconds > now:
                if each.computing_node_id == each.decode_node_id:
                    continue
                spare_seconds = each.ttft_limit_seconds - each.prediction.ttft_seconds
                ends_at_seconds = each.first_token_at_seconds
            elif each.objectives.tpot_seconds:
                spare_seconds = (each.objectives.tpot_seconds - step_seconds) * each.num_gaps
                ends_at_seconds = each.first_token_at_seconds + each.num_gaps * step_seconds + each.stalled_seconds
            else:
                continue
            if estimate.prefill_seconds > spare_seconds - each.stalled_seconds and ends_at_seconds > now:
                wait = max(wait, ends_at_seconds - now)
        return wait


class _Wait(NamedTuple):
    """Until a candidate would be taken."""

    reason: RefusalReason
    seconds: float


def _reachable(objectives: Objectives, candidates: Sequence[Candidate]) -> Objectives:
    """Return objectives that the prompt can meet where nothing waits."""
    if not objectives.ttft_seconds:
        return objectives
    alone_seconds = min(
        each.estimate.time_to_first_token_seconds - each.estimate.queue_seconds for each in candidates if each.estimate
    )
    return objectives._replace(ttft_seconds=max(objectives.ttft_seconds, ALONE_FACTOR * alone_seconds))


def _batch_wait(estimate: CostEstimate, tpot_seconds: float, objective_seconds: float) -> float:
    """Return the time until so many requests have ended that a step is short enough; they end evenly spread."""
    if not objective_seconds or tpot_seconds <= objective_seconds:
        return 0.0
    return (1 - objective_seconds / tpot_seconds) * estimate.expected_output_tokens * estimate.step_seconds
