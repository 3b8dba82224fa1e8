"""Whether a request that can be placed is: by what it and those that run would get, and by what tenants have had.

`AdmissionControl.judge` decides without changing anything; what is decided is told to it, and what became of it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Literal, NamedTuple

from baton.capacity.cost import CostEstimate
from baton.capacity.objectives import Objectives
from baton.capacity.placement import Candidate, Decision
from baton.router.margin import Margin
from baton.router.nodes import Outcome
from baton.router.tenants import TenantShares

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
"""The share of the objective of time per output token up to which a tenant above its share may fill a batch."""
INFORMATIVE_SHARE = 0.3
"""Outcomes teach where at least so much of the objective was predicted: what an idle node does says little of a busy
one."""
FORGET_FACTOR, FORGET_SECONDS = 2.0, 60.0
"""A placement without an outcome is taken as ended after so many times its predicted time and so many seconds."""
MAX_ENTRIES = 16_384
"""Placements in flight remembered; the oldest goes first."""
MAX_MARGINS = 2048
"""Margins kept: two for each node; the oldest goes first."""


class Asker(NamedTuple):
    """On whose behalf a request is, and what it wants."""

    tenant: str = ""
    """Name of the API key; empty without keys."""
    objectives: Objectives = Objectives()
    """Its own; where they are not set, the router's count."""


@dataclass(frozen=True, slots=True)
class AdmissionLimits:
    """Policy and objectives of the router."""

    policy: OverloadPolicy = "queue"
    """What becomes of a request that would miss its objectives."""
    objectives: Objectives = Objectives()
    """Of requests that bring none."""
    degraded_max_tokens: int = 64
    """Output tokens of a degraded request at most."""
    degraded_slo_factor: float = 2.0
    """How many times its objectives a degraded request may take before it is refused, 1 or more."""


class Prediction(NamedTuple):
    """What a client would measure of a request, by an estimate."""

    ttft_seconds: float
    """Time to first token."""
    tpot_seconds: float
    """Mean time per output token, what its KV takes after the first token included; 0 if it has one token."""

    @staticmethod
    def of(estimate: CostEstimate) -> Prediction:
        """Return the prediction of an estimate."""
        num_gaps = estimate.expected_output_tokens - 1
        if num_gaps < 1:
            return Prediction(estimate.time_to_first_token_seconds, 0.0)
        wait_seconds = max(0.0, estimate.start_seconds - estimate.time_to_first_token_seconds)
        tpot_seconds = estimate.step_seconds + wait_seconds / num_gaps
        return Prediction(estimate.time_to_first_token_seconds, tpot_seconds)


class AdmittedRequest(NamedTuple):
    """A request that is placed."""

    decision: Decision
    """With the candidate that keeps the objectives as its choice."""
    max_tokens: int = 0
    """Output that it is cut to; 0: as asked."""


class RefusedRequest(NamedTuple):
    """A request that is not."""

    reason: RefusalReason
    """Why."""
    wait_seconds: float
    """Predicted time until one of its size would be placed, above 0."""
    work_seconds: float
    """What it would have taken."""


@dataclass(slots=True)
class _InFlight:
    """A placement whose outcome is not known."""

    tenant: str
    computing_node_id: str
    decode_node_id: str
    prediction: Prediction
    objectives: Objectives
    num_gaps: float
    """Gaps between its tokens, as expected."""
    first_token_at_seconds: float
    """As predicted."""
    forgotten_at_seconds: float
    stalled_seconds: float = 0.0
    """Time for which prompts that were placed later stop its decoding."""


@dataclass(slots=True)
class _NodeMargins:
    ttft: Margin = field(default_factory=Margin)
    tpot: Margin = field(default_factory=Margin)


class AdmissionControl:
    """Judges decisions by their predictions, corrected by margins learnt from outcomes, and by tenants' shares.

    With the policy "queue" everything is admitted and nothing remembered. Bounds: `MAX_ENTRIES`, `MAX_MARGINS`,
    `tenants.MAX_TENANTS`; kept by `place`, `settle` and `TenantShares.ask`.
    """

    def __init__(self, clock: Callable[[], float], limits: AdmissionLimits) -> None:
        self._clock = clock
        self.limits = limits
        """What it was made with."""
        self._tenants = TenantShares(clock)
        self._in_flight: OrderedDict[str, _InFlight] = OrderedDict()
        self._on_decoder: dict[str, dict[str, _InFlight]] = {}
        self._margins: OrderedDict[str, _NodeMargins] = OrderedDict()

    def judge(self, decision: Decision, asker: Asker, *, is_degraded: bool = False) -> AdmittedRequest | RefusedRequest:
        """Return whether a request is placed, and on which candidate; changes nothing. O(requests in flight).

        Args:
            decision: Where it could run; has a choice.
            asker: Who asks.
            is_degraded: Whether its output is cut already and its objectives are longer for it.
        """
        feasible = [candidate for candidate in islice(decision.candidates, MAX_JUDGED) if candidate.estimate]
        if self.limits.policy == "queue" or not any(self._on_decoder.get(each.decode_node_id) for each in feasible):
            return AdmittedRequest(decision)  # whoever stands idle is not overloaded, whatever the margins say
        objectives = asker.objectives.over(self.limits.objectives)
        if is_degraded:
            objectives = objectives.scaled(self.limits.degraded_slo_factor)
        objectives = _reachable(objectives, feasible)
        is_above = self._tenants.is_above_share(asker.tenant)
        waits = [self._wait(candidate, objectives, is_above_share=is_above) for candidate in feasible]
        first = next((index for index, wait in enumerate(waits) if wait.seconds <= 0), None)
        if first is not None:
            others = [candidate for candidate in decision.candidates if candidate is not feasible[first]]
            return AdmittedRequest(replace(decision, candidates=(feasible[first], *others)))
        shortest = min(range(len(waits)), key=lambda index: waits[index].seconds)
        return RefusedRequest(waits[shortest].reason, waits[shortest].seconds, _work_seconds(feasible[shortest]))

    def ask(self, asker: Asker) -> None:
        """Note that somebody asks, before it is judged."""
        if self.limits.policy != "queue":
            self._forget()
            self._tenants.ask(asker.tenant)

    def refuse(self, refused: RefusedRequest, asker: Asker) -> None:
        """Note a refusal."""
        self._tenants.refuse(asker.tenant, refused.work_seconds)

    def place(self, placement_id: str, choice: Candidate, asker: Asker) -> None:
        """Note a placement, until its outcome."""
        estimate = choice.estimate
        if self.limits.policy == "queue" or estimate is None:
            return
        now = self._clock()
        self._tenants.admit(asker.tenant, _work_seconds(choice))
        self._charge_stall(choice, now)
        entry = _InFlight(
            tenant=asker.tenant,
            computing_node_id=_computing_node_id(choice),
            decode_node_id=choice.decode_node_id,
            prediction=Prediction.of(estimate),
            objectives=asker.objectives.over(self.limits.objectives),
            num_gaps=max(1.0, estimate.expected_output_tokens - 1),
            first_token_at_seconds=now + estimate.time_to_first_token_seconds,
            forgotten_at_seconds=now + FORGET_SECONDS + FORGET_FACTOR * estimate.total_seconds,
        )
        self._in_flight[placement_id] = entry
        self._on_decoder.setdefault(choice.decode_node_id, {})[placement_id] = entry
        if len(self._in_flight) > MAX_ENTRIES:
            self._drop(next(iter(self._in_flight)))

    def settle(self, outcome: Outcome) -> Prediction | None:
        """Learn from the outcome of a placement.

        Returns:
            The margins of its nodes; None for unknown and cancelled ones, which teach nothing.
        """
        entry = self._drop(outcome.placement_id)
        if entry is None or not outcome.num_completion_tokens:
            return None
        ttft_seconds = outcome.queue_seconds + outcome.pull_seconds + outcome.prefill_seconds
        predicted, objectives = entry.prediction, entry.objectives
        self._learn(
            self._margins_of(entry.computing_node_id).ttft,
            ttft_seconds,
            predicted.ttft_seconds,
            objectives.ttft_seconds,
        )
        if outcome.num_completion_tokens > 1:
            self._learn(
                self._margins_of(entry.decode_node_id).tpot,
                outcome.decode_seconds / (outcome.num_completion_tokens - 1),
                predicted.tpot_seconds,
                objectives.tpot_seconds,
            )
        return self._margin(entry.computing_node_id, entry.decode_node_id)

    def _margin(self, computing_node_id: str, decode_node_id: str) -> Prediction:
        """Return what predictions for two nodes are multiplied by."""
        now = self._clock()
        computing, decoding = self._margins.get(computing_node_id), self._margins.get(decode_node_id)
        return Prediction(
            computing.ttft.factor(now) if computing else 1.0, decoding.tpot.factor(now) if decoding else 1.0
        )

    def _wait(self, candidate: Candidate, objectives: Objectives, *, is_above_share: bool) -> _Wait:
        """Return how long to wait until a candidate would keep all objectives; 0 or less: it does."""
        estimate = candidate.estimate
        assert estimate is not None
        margin = self._margin(_computing_node_id(candidate), candidate.decode_node_id)
        predicted = Prediction.of(estimate)
        ttft = (
            predicted.ttft_seconds * margin.ttft_seconds - objectives.ttft_seconds if objectives.ttft_seconds else 0.0
        )
        others = self._on_decoder.get(candidate.decode_node_id, {}).values()
        tpot_seconds = margin.tpot_seconds * predicted.tpot_seconds
        tpot = _batch_wait(estimate, tpot_seconds, objectives.tpot_seconds)
        step_seconds = margin.tpot_seconds * estimate.step_seconds
        tightest = min((each.objectives.tpot_seconds for each in others if each.objectives.tpot_seconds), default=0.0)
        tpot = max(tpot, _batch_wait(estimate, step_seconds, tightest))
        wait = max(ttft, tpot, self._stall_wait(candidate, step_seconds))
        if wait > 0 or not is_above_share:
            return _Wait("OVERLOADED", wait)
        own_seconds = predicted.ttft_seconds - estimate.queue_seconds
        if objectives.ttft_seconds:
            wait = estimate.queue_seconds - max(own_seconds, OVER_SHARE_QUEUE * objectives.ttft_seconds)
        wait = max(wait, _batch_wait(estimate, tpot_seconds, OVER_SHARE_TPOT * objectives.tpot_seconds))
        return _Wait("FAIR_SHARE", wait)

    def _stall_wait(self, candidate: Candidate, step_seconds: float) -> float:
        """Return how long to wait until nobody who decodes would be stopped for longer than its objective allows."""
        estimate, now, wait = candidate.estimate, self._clock(), 0.0
        assert estimate is not None
        for each in self._on_decoder.get(_computing_node_id(candidate), {}).values():
            if each.objectives.tpot_seconds and each.first_token_at_seconds <= now:
                spare_seconds = (each.objectives.tpot_seconds - step_seconds) * each.num_gaps - each.stalled_seconds
                ends_at_seconds = each.first_token_at_seconds + each.num_gaps * step_seconds + each.stalled_seconds
                if estimate.prefill_seconds > spare_seconds and ends_at_seconds > now:
                    wait = max(wait, ends_at_seconds - now)
        return wait

    def _charge_stall(self, choice: Candidate, now_seconds: float) -> None:
        """Note that computing a prompt stops those who decode on the same node."""
        assert choice.estimate is not None
        for each in self._on_decoder.get(_computing_node_id(choice), {}).values():
            if each.first_token_at_seconds <= now_seconds:
                each.stalled_seconds += choice.estimate.prefill_seconds

    def _learn(self, margin: Margin, measured: float, predicted: float, objective: float) -> None:
        if not (objective and predicted > 0 and measured > 0):
            return
        if max(measured, predicted * margin.factor(self._clock())) >= INFORMATIVE_SHARE * objective:
            margin.add(measured / predicted, self._clock())

    def _margins_of(self, node_id: str) -> _NodeMargins:
        margins = self._margins.setdefault(node_id, _NodeMargins())
        if len(self._margins) > MAX_MARGINS:
            self._margins.popitem(last=False)
        return margins

    def _drop(self, placement_id: str) -> _InFlight | None:
        entry = self._in_flight.pop(placement_id, None)
        if entry is not None:
            on_node = self._on_decoder[entry.decode_node_id]
            del on_node[placement_id]
            if not on_node:
                del self._on_decoder[entry.decode_node_id]
        return entry

    def _forget(self) -> None:
        """Drop old placements without an outcome, the oldest first: their nodes or gateways are gone."""
        now = self._clock()
        while self._in_flight:
            placement_id, oldest = next(iter(self._in_flight.items()))
            if oldest.forgotten_at_seconds > now:
                return
            self._drop(placement_id)


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


def _computing_node_id(candidate: Candidate) -> str:
    return candidate.prefill_node_id or candidate.decode_node_id


def _work_seconds(choice: Candidate) -> float:
    """Return what a request takes: computing its prompt, and its place in the batch."""
    return choice.estimate.prefill_seconds + choice.estimate.decode_seconds if choice.estimate else 0.0
