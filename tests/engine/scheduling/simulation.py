"""What the scheduler and the prefix cache make of a load, in virtual time: no runner, no thread, no waiting.

The scheduler and the block pool are those that serve; only the duration of a pass is a formula, and the tokens are
known beforehand. The same load gives the same outcome, always.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import dataclass

from baton.engine.request import EngineRequest, SamplingParams
from baton.engine.scheduling.admission import SchedulerLimits
from baton.engine.scheduling.scheduler import Scheduler
from baton.engine.scheduling.step import Step
from baton.engine.sequence import Sequence, new_sequence
from baton.kv.pool import BlockPool

StepSeconds = Callable[[Step], float]
"""Returns the duration of a pass, above 0."""


@dataclass(frozen=True, slots=True)
class SimulatedRequest:
    """A request whose answer is known."""

    arrival_seconds: float
    """When it comes, 0 or more."""
    prompt_token_ids: tuple[int, ...]
    """1 token or more."""
    output_token_ids: tuple[int, ...]
    """The answer, 1 token or more."""
    priority: int = 0
    """Whose turn it is where requests wait: lower comes earlier."""
    tenant: str = ""
    """Whose it is."""
    tenant_weight: int = 1
    """Of the tenant's share beside others."""


@dataclass(slots=True)
class SimulatedOutcome:
    """What became of a request; moments are seconds of virtual time."""

    cached_token_count: int = 0
    """Prompt tokens found in the prefix cache, or computed for another request in the same pass."""
    admitted_seconds: float = 0.0
    """Got its blocks, the first time."""
    first_token_seconds: float = 0.0
    """Got its first token."""
    finished_seconds: float = 0.0
    """Got its last token."""
    preemption_count: int = 0
    """Times that it gave its blocks to another."""


class Simulation:
    """One run over a load.

    Invariants: the clock never goes back; a request is in exactly one of `_arrivals`, the scheduler, and finished.
    """

    def __init__(
        self,
        requests: Seq[SimulatedRequest],
        pool: BlockPool,
        limits: SchedulerLimits,
        step_seconds: StepSeconds,
        *,
        has_prefix_cache: bool = True,
    ) -> None:
        self._requests = requests
        self._scheduler = Scheduler(pool, limits)
        self._step_seconds = step_seconds
        self._has_prefix_cache = has_prefix_cache
        order = sorted(range(len(requests)), key=lambda index: requests[index].arrival_seconds)
        self._arrivals = deque(order)
        self._outcomes = [SimulatedOutcome() for _ in requests]
        self._now = 0.0

    def run(self) -> list[SimulatedOutcome]:
        """Return the outcome of each request, in the order given.

        Raises:
            OutOfMemoryError: If a request could not finish even alone.
        """
        while self._take_arrivals():
            step = self._scheduler.schedule()
            for sequence in step.admitted:
                self._note_admitted(sequence)
            if step.spans:
                self._compute(step)
        return self._outcomes

    def _take_arrivals(self) -> bool:
        """Queue what has come; with nothing to do, go to the next arrival. Return False if there is nothing left."""
        scheduler = self._scheduler
        if not scheduler.running and not scheduler.waiting:
            if not self._arrivals:
                return False
            self._now = max(self._now, self._requests[self._arrivals[0]].arrival_seconds)
        while self._arrivals and self._requests[self._arrivals[0]].arrival_seconds <= self._now:
            scheduler.add(self._sequence(self._arrivals.popleft()), self._now)
        return True

    def _sequence(self, index: int) -> Sequence:
        pool, request = self._scheduler.pool, self._requests[index]
        max_tokens = len(request.output_token_ids)
        return new_sequence(
            EngineRequest(
                str(index),
                request.prompt_token_ids,
                SamplingParams(temperature=0.0, ignore_eos=True, max_tokens=max_tokens),
                priority=request.priority,
                is_cache_bypassed=not self._has_prefix_cache,
                tenant=request.tenant,
                tenant_weight=request.tenant_weight,
            ),
            max_context_tokens=len(request.prompt_token_ids) + max_tokens,
            max_pool_tokens=pool.num_blocks * pool.block_tokens,
            eos_token_ids=(),
            model_revision_digest="simulation",
            block_tokens=pool.block_tokens,
        )

    def _note_admitted(self, sequence: Sequence) -> None:
        if sequence.stats.num_preemptions == 0:
            outcome = self._outcomes[int(sequence.request_id)]
            outcome.admitted_seconds = self._now
            outcome.cached_token_count = sequence.stats.num_cached + sequence.stats.num_shared

    def _compute(self, step: Step) -> None:
        seconds = self._step_seconds(step)
        self._now += seconds
        self._scheduler.note_pass(step, seconds)
        sampled = [entry.sequence for entry in step.sampled]
        self._scheduler.progress.begin(step)
        self._scheduler.progress.enter(sampled, [self._next_token(sequence) for sequence in sampled])
        for sequence in sampled:
            self._note_token(sequence)

    def _next_token(self, sequence: Sequence) -> int:
        return self._requests[int(sequence.request_id)].output_token_ids[sequence.num_output_tokens]

    def _note_token(self, sequence: Sequence) -> None:
        outcome = self._outcomes[int(sequence.request_id)]
        if sequence.num_output_tokens == 1:
            outcome.first_token_seconds = self._now
        if sequence.finish_reason() is not None:
            outcome.finished_seconds = self._now
            outcome.preemption_count = sequence.stats.num_preemptions
            self._scheduler.finish(sequence)
