"""What traces, metrics and the page /ui learn of generations; nothing is noted that a token would pay for."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from opentelemetry import trace

from baton.errors import BatonError
from baton.gateway.access.admission import RequestContext
from baton.gateway.cluster.token_stream import TokenProgress
from baton.gateway.generation.requests import GenerationResult, PreparedPrompt
from baton.telemetry import names
from baton.telemetry.metrics import Metrics
from baton.v1.router_service_pb2 import Placement
from baton.wire.quantities import seconds_from_duration

_TERMS = ("queue", "pull", "prefill", "transfer", "exposed", "decode")


class GenerationObserver:
    """Watches one generation: times for the metrics, results for the span current at first, tokens for its context."""

    def __init__(
        self, prompt: PreparedPrompt, context: RequestContext, metrics: Metrics, clock: Callable[[], float]
    ) -> None:
        self._prompt = prompt
        self._request = context
        self._metrics = metrics
        self._clock = clock
        self._span = trace.get_current_span()
        self._span_context = trace.set_span_in_context(self._span)
        self._first_seconds: float | None = None
        self._num_completion_tokens: int | None = None
        self._last_seconds = 0.0
        self.times_tokens = metrics.times_tokens()
        """Whether `note_tokens` is to be called."""

    def note_first_token(self) -> None:
        """Note that output begins."""
        self._first_seconds = self._clock()
        if self._request.first_token_seconds is None:
            self._request.first_token_seconds = self._first_seconds
        seconds = self._first_seconds - self._prompt.arrival_seconds
        self._metrics.record_time_to_first_token(seconds, self._prompt.request.model, self._span_context)
        self._span.add_event(names.EVENT_FIRST_TOKEN)
        self._last_seconds = self._first_seconds

    def note_tokens(self) -> None:
        """Note output after the first."""
        now_seconds = self._clock()
        gap_seconds, self._last_seconds = now_seconds - self._last_seconds, now_seconds
        self._metrics.record_inter_token_latency(gap_seconds, self._prompt.request.model, self._span_context)

    def note_result(self, result: GenerationResult) -> None:
        """Note the end."""
        now_seconds = self._clock()
        self._num_completion_tokens = result.num_completion_tokens
        num_further_tokens = result.num_completion_tokens - 1
        seconds_per_token = None
        if self._first_seconds is not None and num_further_tokens > 0:
            seconds_per_token = (now_seconds - self._first_seconds) / num_further_tokens
        duration_seconds = now_seconds - self._prompt.arrival_seconds
        self._metrics.record_end(duration_seconds, seconds_per_token, self._prompt.request.model, self._span_context)
        if not self._span.is_recording():
            return
        terms = {term: seconds_from_duration(getattr(result.summary, f"{term}_duration")) for term in _TERMS}
        self._span.set_attributes({names.MEASURED_TERM.format(term=term): terms[term] for term in terms})
        self._span.set_attributes(
            {
                names.GEN_AI_REQUEST_MODEL: self._prompt.request.model,
                names.GEN_AI_REQUEST_MAX_TOKENS: self._prompt.sampling.max_token_count,
                names.GEN_AI_RESPONSE_FINISH_REASONS: [result.reason],
                names.GEN_AI_USAGE_INPUT_TOKENS: result.num_prompt_tokens,
                names.GEN_AI_USAGE_OUTPUT_TOKENS: result.num_completion_tokens,
                names.CACHED_TOKENS: result.num_cached_tokens,
                names.DECODE_NODE_ID: result.summary.decode_node_id,
                names.PREFILL_NODE_ID: result.summary.prefill_node_id,
                names.PULL_NODE_ID: result.summary.pull_node_id,
            }
        )

    def close(self, choice: int, num_tokens: int) -> None:
        """Count what was generated, finished or not; a prompt counts for its first choice.

        Args:
            choice: Which of the request's choices, from 0.
            num_tokens: Tokens handed on; what counts where no result was noted.
        """
        if self._num_completion_tokens is not None:
            num_tokens = self._num_completion_tokens
        num_prompt_tokens = len(self._prompt.token_ids) if choice == 0 else 0
        self._request.num_prompt_tokens += num_prompt_tokens
        self._request.num_completion_tokens += num_tokens
        self._metrics.add_tokens(num_prompt_tokens=num_prompt_tokens, num_output_tokens=num_tokens)


MAX_ENTRIES = 64
"""Generations remembered; the oldest goes first."""
_WATCHED_SECONDS = 15.0


@dataclass(slots=True)
class JournalEntry:
    """One generation. What changes with every token is read from `progress` and `request`, which its end lets go."""

    name: str
    """Unique name of the generation."""
    route: str
    """Path or method that serves it."""
    num_prompt_tokens: int
    """Tokens of the prompt."""
    began_at: float
    """Seconds since 1970."""
    arrival_seconds: float
    """When the request came, by the event loop's clock."""
    request: RequestContext | None
    """The client's request while it runs."""
    progress: TokenProgress | None
    """What it has come to while it runs."""
    placement: Placement | None = None
    """Of the last attempt, at the end."""
    num_output_tokens: int = 0
    """Tokens generated, at the end."""
    first_token_seconds: float | None = None
    """When the first token came, at the end."""
    ended_seconds: float | None = None
    """End by the event loop's clock; None: it runs."""
    result: GenerationResult | None = None
    """How it ended; None: it runs or has failed."""
    error: str = ""
    """Why it failed, as the client was told; empty if it did not."""

    def settle(self) -> None:
        """Copy what is left of the request; its tokens and its body, which may be large, go."""
        if self.progress is not None and self.request is not None:
            self.placement = self.progress.placement
            self.num_output_tokens = len(self.progress.output_token_ids)
            self.first_token_seconds = self.request.first_token_seconds


class Journal:
    """Remembers generations from their beginning on.

    Args:
        clock: The event loop's.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._entries: deque[JournalEntry] = deque(maxlen=MAX_ENTRIES)
        self._looked_seconds = -_WATCHED_SECONDS

    @contextmanager
    def following(
        self, name: str, context: RequestContext, prompt: PreparedPrompt, progress: TokenProgress
    ) -> Iterator[JournalEntry]:
        """Remember a generation as long as the context lasts, and how that ends."""
        progress.wants_kv_timeline = self._clock() - self._looked_seconds < _WATCHED_SECONDS
        entry = JournalEntry(
            name, context.route, len(prompt.token_ids), time.time(), prompt.arrival_seconds, context, progress
        )
        self._entries.append(entry)
        try:
            yield entry
        except BatonError as error:
            entry.error = error.message
            raise
        except BaseException as error:
            entry.error = type(error).__name__
            raise
        finally:
            entry.settle()
            entry.request = entry.progress = None
            entry.ended_seconds = self._clock()

    def look(self) -> list[JournalEntry]:
        """Return all entries, the latest first; generations that begin soon are told to bring their KV's timeline."""
        self._looked_seconds = self._clock()
        for entry in self._entries:
            entry.settle()
        return list(reversed(self._entries))
