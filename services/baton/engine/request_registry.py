"""The living requests: who listens to each, what it is told, and how it ends."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from collections.abc import Sequence as Seq
from contextlib import contextmanager
from types import MappingProxyType
from typing import NamedTuple

from baton.capacity.snapshot import QueuedPrompt
from baton.engine.events import Ended, EngineEvent, EngineLoad, Failed, LandingLoad, Listener, PromptWork, TokenReady
from baton.engine.request import Purpose
from baton.engine.sampling import SampledToken
from baton.engine.scheduling.scheduler import Scheduler
from baton.engine.sequence import FinishReason, Sequence
from baton.errors import BatonError, NonFiniteLogitsError, PassFailedError

log = logging.getLogger(__name__)

MAX_QUEUED_PROMPTS = 64
"""Prompts that the load names one by one."""


class Delivery(NamedTuple):
    """An event and its listener."""

    listener: Listener
    event: EngineEvent

    def deliver(self) -> None:
        """Tell the listener."""
        self.listener(self.event)


class Tokens(NamedTuple):
    """Tokens of a pass, one for each of several requests, as columns: a `TokenReady` each."""

    listeners: list[Listener]
    output_indexes: list[int]
    """Index in its output of each."""
    token_ids: list[int]

    def deliver(self) -> None:
        """Tell the listeners."""
        for listener, output_index, token_id in zip(*self, strict=True):
            listener(TokenReady(output_index, SampledToken(token_id)))


Deliverable = Delivery | Tokens


def deliver(deliveries: list[Deliverable]) -> None:
    """Tell all listeners, in order."""
    for each in deliveries:
        each.deliver()


class RequestRegistry:
    """Sequences by request, their listeners, and what has not been delivered to them.

    Invariant: a sequence that is not finished has a listener; one that is has none, so that nothing follows its end.
    """

    def __init__(self, scheduler: Scheduler, clock: Callable[[], float]) -> None:
        self._scheduler, self._clock = scheduler, clock
        self._sequences: dict[str, Sequence] = {}
        self._listeners: dict[Sequence, Listener] = {}
        self._deliveries: list[Deliverable] = []
        self.num_tokens = 0
        """Tokens that passes have given."""

    def add(self, sequence: Sequence, listener: Listener) -> None:
        """Take in a sequence."""
        self._sequences[sequence.request_id] = sequence
        self._listeners[sequence] = listener

    def get(self, request_id: str) -> Sequence | None:
        """Return the sequence of a living request."""
        return self._sequences.get(request_id)

    def drop(self, sequence: Sequence) -> None:
        """End a sequence without a word."""
        self._scheduler.finish(sequence)
        del self._sequences[sequence.request_id]
        del self._listeners[sequence]

    def end(self, sequence: Sequence, event: EngineEvent) -> None:
        """End a sequence with its last event; one that has ended is left alone."""
        if sequence in self._listeners:
            self.tell(sequence, event)
            self.drop(sequence)

    def fail(self, sequence: Sequence, error: Exception) -> None:
        """End a sequence for a reason of its own."""
        if isinstance(error, NonFiniteLogitsError):
            self._scheduler.invalidate_cache(sequence)
        with self.failing(sequence):
            raise error

    @contextmanager
    def failing(self, *sequences: Sequence) -> Iterator[None]:
        """Fail these requests, and none else, if the runner raises: the edge of their work."""
        try:
            yield
        except BatonError as error:
            log.warning("requests_failed count=%d reason=%s cause=%s", len(sequences), error.reason, error.message)
            for sequence in sequences:
                self.end(sequence, Failed(error))
        except Exception as error:
            log.exception("runner_failed")
            for sequence in sequences:
                self.end(sequence, Failed(PassFailedError(f"the engine failed: {type(error).__name__}: {error}")))

    def end_if_complete(self, sequence: Sequence) -> None:
        """End a sequence whose last token ends its output."""
        reason = None
        try:  # not `failing`: entering it would cost every token as much as all else here
            reason = sequence.finish_reason()
        except BatonError as error:
            self.fail(sequence, error)
        if reason is not None:
            ended = self._ended(sequence, reason)
            self._scheduler.progress.keep_computed(sequence)
            self.end(sequence, ended)

    def tell(self, sequence: Sequence, event: EngineEvent) -> None:
        """Gather an event, if somebody listens."""
        listener = self._listeners.get(sequence)
        if listener is not None:
            self._deliveries.append(Delivery(listener, event))

    def refuse(self, listener: Listener, error: BatonError) -> None:
        """Gather the failure of a request that is not taken in."""
        self._deliveries.append(Delivery(listener, Failed(error)))

    @property
    def has_news(self) -> bool:
        """Return whether something was gathered."""
        return bool(self._deliveries)

    def drain(self) -> list[Deliverable]:
        """Return and forget what was gathered, in order."""
        deliveries, self._deliveries = self._deliveries, []
        return deliveries

    def token(self, sequence: Sequence, token: SampledToken) -> None:
        """Gather the token that was appended to a sequence last."""
        if sequence.stats.first_token == 0.0:
            sequence.stats.first_token = self._clock()
            self.joined(sequence)
        work = _prompt_work(sequence, sequence.stats.first_token) if sequence.purpose is Purpose.PREFILL else None
        self.tell(sequence, TokenReady(sequence.num_output_tokens - 1, token, work))

    def joined(self, sequence: Sequence, *, misses_step: bool = False) -> None:
        """Take a sequence for one that decodes from now on; one that misses a step in flight counts as if it had it."""
        sequence.stats.joined = self.num_tokens, len(sequence.token_ids) - misses_step

    def tokens(self, sequences: Seq[Sequence], token_ids: Seq[int]) -> list[Sequence]:
        """Gather the tokens that were appended last, and return the sequences that they may end."""
        listeners, indexes, plain_ids, ending = list[Listener](), list[int](), list[int](), list[Sequence]()
        for sequence, token_id in zip(sequences, token_ids, strict=True):
            num_output_tokens = len(sequence.token_ids) - sequence.num_prompt_tokens
            if sequence.stats.first_token == 0.0:
                self.token(sequence, SampledToken(token_id))
            else:
                listeners.append(self._listeners[sequence])
                indexes.append(num_output_tokens - 1)
                plain_ids.append(token_id)
            if token_id in sequence.end_token_ids or num_output_tokens >= sequence.max_output_tokens:
                ending.append(sequence)
        if listeners:
            self._deliveries.append(Tokens(listeners, indexes, plain_ids))
        return ending

    def load(
        self,
        num_steps: int,
        landing: LandingLoad,
        reading_bytes_per_second: float = 0.0,
        in_flight: Mapping[Sequence, int] = MappingProxyType({}),
    ) -> EngineLoad:
        """Return what the engine is doing, after so many passes. O(living requests).

        `in_flight`: positions of prompts that count as computed, and are not yet.
        """
        waiting, running = self._scheduler.waiting, self._scheduler.running
        num_lacking = self._scheduler.admission.num_lacking
        generating = [sequence for sequence in running if sequence.purpose is not Purpose.PREFILL]
        prompts = [
            (sequence, in_flight.get(sequence, 0) + (num_lacking(sequence) if sequence.is_prefilling else 0))
            for sequence in (*running, *waiting)
            if sequence.purpose is not Purpose.RECEIVE and (sequence.is_prefilling or sequence in in_flight)
        ]
        return EngineLoad(
            num_waiting=len(waiting) + len(self._scheduler.receiving),
            num_running=len(running),
            num_pending_prompt_tokens=sum(num_left for _, num_left in prompts),
            num_available_blocks=self._scheduler.pool.num_available,
            num_wanted_blocks=sum(map(self._scheduler.admission.num_wanted_blocks, waiting)),
            mean_context_tokens=sum(len(sequence.token_ids) for sequence in generating) / max(1, len(generating)),
            num_steps=num_steps,
            tier_hits=self._scheduler.offload.hits,
            num_dropped_files=self._scheduler.offload.num_dropped_files,
            tier_rates=self._scheduler.offload.rates,
            is_sparing_memory=self._scheduler.admission.is_sparing,
            queued_prompts=tuple(
                QueuedPrompt(each.request.placement_id, len(each.token_ids) + each.num_ahead - num_left, num_left)
                for each, num_left in prompts[:MAX_QUEUED_PROMPTS]
            ),
            landing=landing,
            reading_bytes_per_second=reading_bytes_per_second,
            num_decoding=sum(not sequence.is_prefilling for sequence in generating),
            num_exports=sum(sequence.purpose is Purpose.PREFILL for sequence in (*running, *waiting)),
        )

    def _ended(self, sequence: Sequence, reason: FinishReason) -> Ended:
        stats, now = sequence.stats, self._clock()
        first_token = stats.first_token or now
        num_before, num_own_before = stats.joined
        num_steps = len(sequence.token_ids) - num_own_before
        return Ended(
            reason=reason,
            num_prompt_tokens=sequence.num_prompt_tokens,
            num_output_tokens=sequence.num_output_tokens,
            prompt_work=_prompt_work(sequence, first_token),
            num_preemptions=stats.num_preemptions,
            decode_seconds=now - first_token,
            join_seconds=stats.join_seconds,
            stop_token_id=sequence.token_ids[-1] if reason == "stop" and sequence.ends_with_end_token else None,
            mean_batch_size=(self.num_tokens - num_before) / num_steps if num_steps and stats.first_token else 0.0,
        )


def queued_placements(load: EngineLoad) -> list[str]:
    """Return the placements of the prompts that are still to compute, as far as they are named."""
    return [each.placement_id for each in load.queued_prompts]


def _prompt_work(sequence: Sequence, first_token: float) -> PromptWork:
    """Return what it took until the first token, of which a part was waiting.

    Where the first token came from another node, the sequence waited until KV could be asked for; what followed is the
    other node's to tell.
    """
    stats = sequence.stats
    num_cached = min(stats.num_cached, sequence.num_prompt_tokens)
    if sequence.request.purpose is Purpose.RECEIVE and not stats.computed_seconds:
        started = stats.started or first_token
        queue_seconds, prefill_seconds = started - stats.submitted, first_token - started
    else:
        prefill_seconds = stats.computed_seconds
        queue_seconds = max(0.0, first_token - stats.submitted - prefill_seconds)
    return PromptWork(
        num_cached_tokens=num_cached,
        num_shared_tokens=min(stats.num_shared, sequence.num_prompt_tokens - num_cached),
        queue_seconds=queue_seconds,
        prefill_seconds=prefill_seconds,
    )
