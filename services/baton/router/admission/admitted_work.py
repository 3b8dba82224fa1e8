"""What is in flight of what was admitted, and what its outcomes teach of predictions and nodes."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from baton.capacity.cost import CostEstimate
from baton.capacity.objectives import Objectives
from baton.capacity.placement import Candidate
from baton.router.admission.margin import Margin, relative, relied_on
from baton.router.admission.work_limit import WorkLimit
from baton.router.nodes import Outcome

INFORMATIVE_SHARE = 0.3
"""Outcomes teach where at least so much of the objective was predicted: what an idle node does says little of a busy
one."""
FORGET_FACTOR, FORGET_SECONDS = 2.0, 60.0
"""A placement without an outcome is taken as ended after so many times its predicted time and so many seconds."""
LONG_PROMPT_FACTOR = 1.5
"""A prompt that was predicted to miss its objective by its length keeps so many times its prediction."""
MAX_ENTRIES = 16_384
"""Placements in flight remembered; the oldest goes first."""
MAX_NODES = 2048
"""Nodes of which something is learnt; the oldest goes first."""


class Prediction(NamedTuple):
    """What a client would measure of a request, by an estimate."""

    ttft_seconds: float
    tpot_seconds: float
    """Mean time per output token, with what its KV takes after the first token and to join; 0 for one token."""

    @staticmethod
    def of(estimate: CostEstimate) -> Prediction:
        """Return the prediction of an estimate."""
        num_gaps, waited = estimate.expected_output_tokens - 1, estimate.exposed_seconds + estimate.join_seconds
        # Where the batch or the pool has no room, the prompt waits for it before it is computed.
        ttft_seconds = max(estimate.time_to_first_token_seconds, estimate.start_seconds - waited)
        if num_gaps < 1:
            return Prediction(ttft_seconds, 0.0)
        return Prediction(ttft_seconds, estimate.step_seconds + waited / num_gaps)


class Asker(NamedTuple):
    """On whose behalf a request is, and what it wants."""

    tenant: str = ""
    """Name of the API key; empty without keys."""
    objectives: Objectives = Objectives()
    """Its own; where they are not set, the router's count."""
    weight: int = 1
    """Of the tenant's share beside others, 1 or more."""
    model: str = ""
    """Model that is asked for."""


@dataclass(slots=True)
class InFlight:
    """A placement whose outcome is not known."""

    computing_node_id: str
    decode_node_id: str
    prediction: Prediction
    objectives: Objectives
    num_gaps: float
    """Gaps between its tokens, as expected."""
    work_seconds: float
    placed_at_seconds: float
    ttft_limit_seconds: float
    """Time to first token with which it keeps its objective."""
    late_at_seconds: float
    """When it cannot keep its objectives any more, whatever becomes of it."""
    first_token_at_seconds: float
    """As predicted."""
    forgotten_at_seconds: float
    asker: Asker
    prompt_seconds: float
    """Part of its work for its prompt."""
    stalled_seconds: float = 0.0
    """Time for which prompts that were placed later stop it."""
    is_late: bool = False


@dataclass(slots=True)
class _Learnt:
    """What outcomes have taught of one node."""

    ttft: Margin = field(default_factory=Margin)
    tpot: Margin = field(default_factory=partial(Margin, 1.0))
    """Only loosens: a step is predicted from the batch, and what makes all steps slower makes no request refused for
    ever if the limit stands for it."""
    limit: WorkLimit = field(default_factory=WorkLimit)


class AdmittedWork:
    """Placements without an outcome by decode node, and what the outcomes of others have taught of nodes.

    Invariants, kept by `place` and `_learnt_of`: at most MAX_ENTRIES placements and MAX_NODES nodes.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._in_flight: OrderedDict[str, InFlight] = OrderedDict()
        self._on_decoder: dict[str, dict[str, InFlight]] = {}
        self._on_computing: dict[str, dict[str, InFlight]] = {}
        self._learnt: OrderedDict[str, _Learnt] = OrderedDict()

    def on(self, decode_node_id: str) -> Collection[InFlight]:
        """Return what is in flight on a decode node."""
        return self._on_decoder.get(decode_node_id, {}).values()

    def seconds_on(self, decode_node_id: str) -> float:
        """Return the work in flight on a decode node."""
        return sum(each.work_seconds for each in self.on(decode_node_id))

    def turn_seconds(self, node_id: str, asker: Asker, prompt_seconds: float, queue_seconds: float) -> float:
        """Return how long a prompt waits on the node that computes it, where tenants take turns by their weights.

        What its tenant has there comes first; of the rest of the queue, as much as the others' weights allow meanwhile.
        """
        now, own_seconds, weights = self._clock(), 0.0, dict[str, int]()
        for each in self._on_computing.get(node_id, {}).values():
            if each.asker.tenant != asker.tenant:
                weights[each.asker.tenant] = each.asker.weight
            elif each.first_token_at_seconds > now:
                own_seconds += min(each.prompt_seconds, each.first_token_at_seconds - now)
        most_seconds = (own_seconds + prompt_seconds) * sum(weights.values()) / asker.weight
        return min(queue_seconds, own_seconds + most_seconds)

    def look(self) -> None:
        """Notice what time has shown: placements that are late, and those of which nobody will hear again."""
        now = self._clock()
        for placement_id, entry in list(self._in_flight.items()):
            if entry.forgotten_at_seconds <= now:
                self._drop(placement_id)
            elif not entry.is_late and entry.late_at_seconds <= now:
                entry.is_late = True  # its outcome would come too late to learn from
                self._count(entry, is_kept=False)

    def place(
        self, placement_id: str, choice: Candidate, asker: Asker, objectives: Objectives, *, max_tokens: int
    ) -> None:
        """Add a placement, until its outcome."""
        now, estimate = self._clock(), choice.estimate
        assert estimate is not None
        self._charge_stall(choice, now)
        predicted = Prediction.of(estimate)
        if 0 < objectives.tpot_seconds < predicted.tpot_seconds:  # it never could be kept: others are not held to it
            objectives = objectives._replace(tpot_seconds=LONG_PROMPT_FACTOR * predicted.tpot_seconds)
        ttft_limit_seconds = _ttft_limit(objectives, predicted)
        longest_decode_seconds = (max_tokens - 1) * objectives.tpot_seconds or float("inf")
        entry = InFlight(
            computing_node_id=computing_node_id(choice),
            decode_node_id=choice.decode_node_id,
            prediction=predicted,
            objectives=objectives,
            num_gaps=max(1.0, estimate.expected_output_tokens - 1),
            work_seconds=work_seconds(choice),
            placed_at_seconds=now,
            ttft_limit_seconds=ttft_limit_seconds,
            late_at_seconds=now + ttft_limit_seconds + longest_decode_seconds,
            first_token_at_seconds=now + estimate.time_to_first_token_seconds,
            forgotten_at_seconds=now + FORGET_SECONDS + FORGET_FACTOR * estimate.total_seconds,
            asker=asker,
            prompt_seconds=estimate.prefill_seconds,
        )
        self._in_flight[placement_id] = entry
        self._on_decoder.setdefault(entry.decode_node_id, {})[placement_id] = entry
        self._on_computing.setdefault(entry.computing_node_id, {})[placement_id] = entry
        limit = self._learnt_of(choice.decode_node_id).limit
        limit.place(self.seconds_on(choice.decode_node_id), entry.work_seconds)
        if len(self._in_flight) > MAX_ENTRIES:
            self._drop(next(iter(self._in_flight)))

    def settle(self, outcome: Outcome) -> Prediction | None:
        """Learn from a placement's outcome; return its nodes' margins, None for unknown and cancelled ones."""
        entry = self._in_flight.get(outcome.placement_id)
        if entry is None:
            return None
        if outcome.num_completion_tokens:
            self._learn_from(entry, outcome)
        self._drop(outcome.placement_id)
        return self.margin(entry.computing_node_id, entry.decode_node_id) if outcome.num_completion_tokens else None

    def forget(self, node_id: str) -> None:
        """Take what is in flight on a decode node as ended: the process is gone, and with it what it would report."""
        for placement_id in list(self._on_decoder.get(node_id, ())):
            self._drop(placement_id)

    def margin(self, computing_node_id: str, decode_node_id: str) -> Prediction:
        """Return what predictions for two nodes are multiplied by."""
        now = self._clock()
        computing, decoding = self._learnt.get(computing_node_id), self._learnt.get(decode_node_id)
        return Prediction(
            computing.ttft.factor(now) if computing else 1.0, decoding.tpot.factor(now) if decoding else 1.0
        )

    def limit_of(self, decode_node_id: str) -> WorkLimit | None:
        """Return what is learnt of how much a node may have in flight; None: nothing."""
        learnt = self._learnt.get(decode_node_id)
        return learnt.limit if learnt else None

    def _learn_from(self, entry: InFlight, outcome: Outcome) -> None:
        # By this clock, so that a wait counts wherever it was.
        ttft_seconds = self._clock() - entry.placed_at_seconds - outcome.decode_seconds
        predicted, objectives = entry.prediction, entry.objectives
        computing, decoding = self._learnt_of(entry.computing_node_id), self._learnt_of(entry.decode_node_id)
        tpot_seconds = outcome.decode_seconds / max(1, outcome.num_completion_tokens - 1)
        self._learn(computing.ttft, ttft_seconds, predicted.ttft_seconds, objectives.ttft_seconds)
        self._learn(decoding.tpot, tpot_seconds, predicted.tpot_seconds, objectives.tpot_seconds)
        if not entry.is_late:
            # A first token that is late has widened the margin; the limit is for what comes after it.
            self._count(entry, is_kept=not objectives.tpot_seconds or tpot_seconds <= objectives.tpot_seconds)

    def _count(self, entry: InFlight, *, is_kept: bool) -> None:
        """Let a node's limit learn of a request that is still counted as in flight."""
        self._learnt_of(entry.decode_node_id).limit.count(
            is_kept=is_kept, placed_at_seconds=entry.placed_at_seconds, now_seconds=self._clock()
        )

    def _charge_stall(self, choice: Candidate, now_seconds: float) -> None:
        """Note that computing a prompt stops those who decode on the same node."""
        assert choice.estimate is not None
        for each in self._on_decoder.get(computing_node_id(choice), {}).values():
            is_before = each.computing_node_id == each.decode_node_id and each.first_token_at_seconds > now_seconds
            if not is_before:
                each.stalled_seconds += choice.estimate.prefill_seconds

    def _learn(self, margin: Margin, measured: float, predicted: float, objective: float) -> None:
        if not (objective and predicted > 0 and measured > 0):
            return
        now = self._clock()
        if max(measured, relied_on(predicted, margin.factor(now), objective)) >= INFORMATIVE_SHARE * objective:
            margin.add(relative(measured, predicted, objective), now)

    def _learnt_of(self, node_id: str) -> _Learnt:
        learnt = self._learnt.get(node_id)
        if learnt is None:
            learnt = self._learnt[node_id] = _Learnt()
            if len(self._learnt) > MAX_NODES:
                self._learnt.popitem(last=False)
        return learnt

    def _drop(self, placement_id: str) -> InFlight | None:
        entry = self._in_flight.pop(placement_id, None)
        if entry is not None:
            indexes = (self._on_decoder, entry.decode_node_id), (self._on_computing, entry.computing_node_id)
            for index, node_id in indexes:
                del index[node_id][placement_id]
                if not index[node_id]:
                    del index[node_id]
        return entry


def _ttft_limit(objectives: Objectives, predicted: Prediction) -> float:
    """Return the time to first token that a request keeps its objective with; endless without one.

    A prompt that takes longer by itself, and was admitted for that, is held to its prediction.
    """
    if not objectives.ttft_seconds:
        return float("inf")
    if predicted.ttft_seconds <= objectives.ttft_seconds:
        return objectives.ttft_seconds
    return LONG_PROMPT_FACTOR * predicted.ttft_seconds


def computing_node_id(candidate: Candidate) -> str:
    """Return the node that would compute the prompt."""
    return candidate.prefill_node_id or candidate.decode_node_id


def work_seconds(choice: Candidate) -> float:
    """Return what a request takes: computing its prompt, and its place in the batch."""
    return choice.estimate.prefill_seconds + choice.estimate.decode_seconds if choice.estimate else 0.0
