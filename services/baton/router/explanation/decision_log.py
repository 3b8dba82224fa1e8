"""The last decisions of a router with what was known and what came of them, for people who ask why. Bounded."""

from __future__ import annotations

import re
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from baton.capacity.cost import CostEstimate
from baton.capacity.placement import Candidate, Decision
from baton.capacity.snapshot import Link, NodeLoad
from baton.capacity.value_class import value_class
from baton.router.nodes import Outcome

MAX_RECORDS = 4096
"""Decisions remembered; the oldest goes first. With the four best others of each they take 29 MB."""
MAX_OTHERS = 4
"""Candidates that were not chosen, and reasons of infeasible ones, that a record holds."""
MAX_FOUND = 32
"""Records of one request that are told, the latest."""

_GENERATION = re.compile(r"(?P<client>.+)\.[0-9a-f]{8}(?:-\d+)?")
"""What gateways make of a client's name of its request (baton.gateway.access.admission)."""


@value_class()
class KnownNode:
    """A node as it was seen when the decision was made (protos/baton/internal/v1/router_service.proto)."""

    node_id: str
    load: NodeLoad
    """Its work: its last report, and what had been placed there since."""
    report_age_seconds: float
    """Time since that report."""
    prefill_calibration: float
    """What its prefill times were multiplied by; 0: no outcomes yet."""
    decode_calibration: float
    """The same of its decode steps."""


@value_class()
class KnownLink:
    """A link as it was seen when the decision was made (protos/baton/internal/v1/router_service.proto)."""

    from_node_id: str
    to_node_id: str
    link: Link
    calibration: float
    """What its transfer times were multiplied by; 0: no outcomes yet."""


@dataclass(slots=True)
class DecisionRecord:
    """One decision; `outcome` is filled in when it arrives."""

    request_id: str
    """Name of the generation, as nodes know it."""
    model_id: str
    num_prompt_tokens: int
    max_tokens: int
    """Largest number of tokens still to generate."""
    excluded_node_ids: tuple[str, ...]
    placement_id: str = ""
    """Names the decision; empty: nothing was chosen."""
    choice: Candidate | None = None
    """What was chosen; None: nothing."""
    refusal: str = ""
    """Why nothing was chosen; empty if something was."""
    others: tuple[Candidate, ...] = ()
    num_candidates: int = 0
    infeasible_reasons: tuple[str, ...] = ()
    nodes: tuple[KnownNode, ...] = ()
    """The chosen nodes, the decode node first."""
    link: KnownLink | None = None
    """The link between them; None: the choice uses none."""
    outcome: Outcome | None = None
    """What happened; None: no node has reported it (yet)."""
    degraded_max_tokens: int = 0
    """Output that it was cut to because of overload; 0: it was not."""
    decided_at: float = 0.0
    """Seconds since 1970, set by the log."""

    @property
    def runner_up(self) -> CostEstimate | None:
        """Return the terms of the best candidate that was not chosen; None if there was none."""
        return self.others[0].estimate if self.others else None


class DecisionLog:
    """Records by request.

    Invariant, kept by `add`: at most `max_records` records, each reachable by the name of its generation, by the
    client's name of the request and, where something was chosen, by its placement.
    """

    def __init__(self, *, max_records: int = MAX_RECORDS) -> None:
        self.max_records = max_records
        """Bound."""
        self._records: deque[DecisionRecord] = deque()
        self._by_name: dict[str, deque[DecisionRecord]] = {}
        self._by_placement: dict[str, DecisionRecord] = {}

    def __len__(self) -> int:
        return len(self._records)

    def add(self, record: DecisionRecord) -> None:
        """Remember a decision, and forget the oldest where there are too many."""
        record.decided_at = time.time()
        self._records.append(record)
        for name in _names(record.request_id):
            self._by_name.setdefault(name, deque()).append(record)
        if record.placement_id:
            self._by_placement[record.placement_id] = record
        if len(self._records) > self.max_records:
            self._drop_oldest()

    def settle(self, outcome: Outcome) -> None:
        """Take an outcome; one of a decision that is not remembered any more is left out."""
        record = self._by_placement.get(outcome.placement_id)
        if record is not None:
            record.outcome = outcome

    def find(self, request_id: str) -> Sequence[DecisionRecord]:
        """Return the records of a request, by either of its names, in the order of the decisions; empty if unknown."""
        return list(self._by_name.get(request_id, ()))[-MAX_FOUND:]

    def _drop_oldest(self) -> None:
        oldest = self._records.popleft()
        self._by_placement.pop(oldest.placement_id, None)
        for name in _names(oldest.request_id):
            records = self._by_name[name]
            records.popleft()
            if not records:
                del self._by_name[name]


def best_candidates(decision: Decision, *, num_chosen: int) -> tuple[Candidate, ...]:
    """Return the best feasible candidates after those that were chosen: the first one, or none."""
    best = decision.candidates[num_chosen : num_chosen + MAX_OTHERS]
    return tuple(candidate for candidate in best if candidate.estimate)


def infeasible_reasons(decision: Decision) -> tuple[str, ...]:
    """Return some of the reasons why candidates are infeasible, each once; these candidates come last."""
    reasons: dict[str, None] = {}
    for candidate in reversed(decision.candidates):
        if candidate.estimate or len(reasons) == MAX_OTHERS:
            break
        reasons[candidate.infeasible_reason] = None
    return tuple(sorted(reasons))


def _names(request_id: str) -> Sequence[str]:
    generation = _GENERATION.fullmatch(request_id)
    return (request_id, generation["client"]) if generation else (request_id,)
