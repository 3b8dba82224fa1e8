"""What traces, metrics and the page /ui learn of generations; nothing is noted that a token would pay for."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

from opentelemetry import trace
from opentelemetry.util.types import AttributeValue

from baton.capacity.placement_table import TermComparison
from baton.errors import BatonError
from baton.gateway.access.admission import RequestContext
from baton.gateway.generation.requests import ChatPrompt, GenerationRequest, GenerationResult, GenerationState
from baton.internal.v1.router_service_pb2 import Placement
from baton.telemetry import names
from baton.telemetry.metrics import Metrics
from baton.telemetry.tracing import note_failure, span
from baton.wire.quantities import terms_beside

CANCELLED = "the client left before the end"
"""Of a generation whose client went away: no failure."""
MAX_ENTRIES = 64
"""Generations remembered; the oldest goes first."""
_WATCHED_SECONDS = 15.0
_MAX_MODEL_CHARACTERS = 128
_PARAMETERS = frozenset({"temperature", "top_p", "top_k", "seed", "frequency_penalty", "presence_penalty"})
"""Sampling parameters that OpenTelemetry's conventions know, by the same names."""


class GenerationObserver:
    """Watches a generation inside `with`: times and tokens for metrics, its end for journal and current span."""

    def __init__(
        self,
        generation: GenerationState,
        context: RequestContext,
        metrics: Metrics,
        journal: Journal,
        *,
        is_first_choice: bool,
    ) -> None:
        """Begin. `is_first_choice`: the prompt counts; that of several choices counts once."""
        self._prompt = generation.prompt
        self._model = {names.GEN_AI_REQUEST_MODEL: generation.prompt.request.model}
        self._request = context
        self._metrics, self._is_first_choice = metrics, is_first_choice
        self._clock = journal.clock
        self._entry = journal.begin(generation, context)
        self._span = trace.get_current_span()
        self._span_context = trace.set_span_in_context(self._span)
        self._first_seconds: float | None = None
        self._last_seconds = 0.0
        self.num_tokens = 0
        """Tokens handed on; those of its result once that is noted."""
        self.times_tokens = metrics.times_tokens()
        """Whether `note_tokens` is to be called."""

    def __enter__(self) -> GenerationObserver:
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _traceback: object) -> None:
        """Note the end, and count what was generated, finished or not."""
        if error is not None:
            self._entry.error = _in_words(error)
        self._entry.end(self._clock())
        num_prompt_tokens = len(self._prompt.token_ids) if self._is_first_choice else 0
        self._request.num_prompt_tokens += num_prompt_tokens
        self._request.num_completion_tokens += self.num_tokens
        self._metrics.add(names.GATEWAY_PROMPT_TOKENS, num_prompt_tokens)
        self._metrics.add(names.GATEWAY_OUTPUT_TOKENS, self.num_tokens)
        if self._span.is_recording():
            self._span.set_attributes(self._response_attributes())

    def note_first_token(self) -> None:
        """Note that output begins."""
        self._first_seconds = self._clock()
        if self._request.first_token_seconds is None:
            self._request.first_token_seconds = self._first_seconds
        seconds = self._first_seconds - self._prompt.arrival_seconds
        self._metrics.record(names.TIME_TO_FIRST_TOKEN, seconds, self._model, self._span_context)
        self._span.add_event(names.EVENT_FIRST_TOKEN)
        self._last_seconds = self._first_seconds

    def note_tokens(self) -> None:
        """Note output after the first."""
        now_seconds = self._clock()
        gap_seconds, self._last_seconds = now_seconds - self._last_seconds, now_seconds
        self._metrics.record(names.INTER_TOKEN_LATENCY, gap_seconds, self._model, self._span_context)

    def note_result(self, result: GenerationResult) -> None:
        """Note the end."""
        now_seconds = self._clock()
        self._entry.result = result._replace(prompt=None)  # the journal keeps no log-probabilities
        self.num_tokens = result.num_completion_tokens
        num_further_tokens = result.num_completion_tokens - 1
        duration_seconds = now_seconds - self._prompt.arrival_seconds
        self._metrics.record(names.REQUEST_DURATION, duration_seconds, self._model, self._span_context)
        if self._first_seconds is not None and num_further_tokens > 0:
            seconds_per_token = (now_seconds - self._first_seconds) / num_further_tokens
            self._metrics.record(names.TIME_PER_OUTPUT_TOKEN, seconds_per_token, self._model, self._span_context)
        self._request.finish_reasons.append(result.reason)
        self._request.num_cached_tokens += result.num_cached_tokens if self._is_first_choice else 0
        if not self._span.is_recording():
            return
        if self._entry.generation is not None and self._entry.generation.placement is not None:
            pairs = terms_beside(self._entry.generation.placement.estimate, result.summary)
            self._span.set_attributes(_term_attributes(pairs))
        self._span.set_attributes(
            {
                names.DECODE_NODE_ID: result.summary.decode_node_id,
                names.PREFILL_NODE_ID: result.summary.prefill_node_id,
                names.PULL_NODE_ID: result.summary.pull_node_id,
            }
        )
        if result.num_reasoning_tokens is not None:
            self._span.set_attribute(names.GEN_AI_USAGE_REASONING_TOKENS, result.num_reasoning_tokens)

    def _response_attributes(self) -> dict[str, AttributeValue]:
        """Return what the whole request has come to, all of its generations that have ended."""
        request, prompt = self._request, self._prompt
        attributes: dict[str, AttributeValue] = {
            names.GEN_AI_RESPONSE_ID: request.answer_id or request.request_id,
            names.GEN_AI_RESPONSE_MODEL: prompt.adapter.name if prompt.adapter else prompt.model_id,
            names.GEN_AI_RESPONSE_FINISH_REASONS: tuple(request.finish_reasons),
            names.GEN_AI_USAGE_INPUT_TOKENS: request.num_prompt_tokens,
            names.GEN_AI_USAGE_CACHED_TOKENS: request.num_cached_tokens,
            names.GEN_AI_USAGE_OUTPUT_TOKENS: request.num_completion_tokens,
        }
        if request.first_token_seconds is not None:
            seconds = request.first_token_seconds - request.arrival_seconds
            attributes[names.GEN_AI_RESPONSE_TIME_TO_FIRST_CHUNK] = seconds
        return attributes


def operation_span(operation: str, address: Mapping[str, AttributeValue]) -> AbstractContextManager[trace.Span]:
    """Return the span of an operation, to run a request in.

    `describe_request` and the observers of its generations fill it in. As the conventions have it, it is the client's
    of whoever computes: the nodes.
    """
    given = {names.GEN_AI_OPERATION_NAME: operation, names.GEN_AI_PROVIDER_NAME: names.PROVIDER, **address}
    return span(operation, trace.SpanKind.CLIENT, given)


def note_request(span: trace.Span, context: RequestContext, failure: str) -> None:
    """Tell a span which request it is of, and how that ended."""
    span.set_attribute(names.REQUEST_ID, context.request_id)
    if context.error_code:
        span.set_attribute(names.ERROR_CODE, context.error_code)
    if failure:
        note_failure(span, failure)


def describe_request(request: GenerationRequest) -> None:
    """Name the operation's span after the model, and tell it how tokens are to be chosen."""
    operation = trace.get_current_span()
    if not operation.is_recording():
        return
    model, sampling = request.model[:_MAX_MODEL_CHARACTERS], request.sampling
    name = names.OPERATION_CHAT if isinstance(request.prompt, ChatPrompt) else names.OPERATION_TEXT_COMPLETION
    operation.update_name(f"{name} {model}")
    operation.set_attribute(names.GEN_AI_REQUEST_MODEL, model)
    for descriptor, value in sampling.ListFields():
        if descriptor.name in _PARAMETERS:
            operation.set_attribute(names.GEN_AI_REQUEST_PARAMETER.format(parameter=descriptor.name), value)
    if sampling.HasField("max_token_count"):
        operation.set_attribute(names.GEN_AI_REQUEST_MAX_TOKENS, sampling.max_token_count)
    if request.stop:
        operation.set_attribute(names.GEN_AI_REQUEST_STOP_SEQUENCES, request.stop)
    if sampling.structured_output.HasField("json_schema"):
        operation.set_attribute(names.GEN_AI_OUTPUT_TYPE, "json")


def _in_words(error: BaseException) -> str:
    if isinstance(error, asyncio.CancelledError | GeneratorExit):
        return CANCELLED
    return error.message if isinstance(error, BatonError) else type(error).__name__


def _term_attributes(pairs: Sequence[TermComparison]) -> dict[str, float]:
    """Return each term estimated, measured, and measured by estimated, as far as there is something."""
    attributes: dict[str, float | None] = {}
    for pair in pairs:
        attributes[names.ESTIMATED_TERM.format(term=pair.term)] = pair.estimated_seconds
        attributes[names.MEASURED_TERM.format(term=pair.term)] = pair.measured_seconds
        attributes[names.TERM_RATIO.format(term=pair.term)] = pair.ratio
    return {name: value for name, value in attributes.items() if value is not None}


@dataclass(slots=True)
class JournalEntry:
    """One generation. What changes with every token is read from `generation` and `request`, which its end lets go."""

    name: str
    route: str
    """Path or method that serves it."""
    num_prompt_tokens: int
    began_at: float
    """Seconds since 1970."""
    arrival_seconds: float
    """When the request came, by the event loop's clock."""
    request: RequestContext | None
    """The client's request while it runs."""
    generation: GenerationState | None
    """What it has come to while it runs."""
    placement: Placement | None = None
    """Of the last attempt, at the end."""
    num_output_tokens: int = 0
    first_token_seconds: float | None = None
    ended_seconds: float | None = None
    """End by the event loop's clock; None: it runs."""
    result: GenerationResult | None = None
    """How it ended; None: it runs or has failed."""
    error: str = ""
    """Why it failed, as the client was told; empty if it did not."""

    def settle(self) -> None:
        """Copy what is left of the request; its tokens, which may be many, go."""
        if self.generation is not None and self.request is not None:
            self.placement = self.generation.placement
            self.num_output_tokens = len(self.generation.output_token_ids)
            self.first_token_seconds = self.request.first_token_seconds

    def end(self, now_seconds: float) -> None:
        """Note the end, and let the request go."""
        self.settle()
        self.request = self.generation = None
        self.ended_seconds = now_seconds


class Journal:
    """Remembers the last generations of this process, from their beginning on, for people who look at them."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.clock = clock
        """The event loop's."""
        self._entries: deque[JournalEntry] = deque(maxlen=MAX_ENTRIES)
        self._looked_seconds = -_WATCHED_SECONDS

    def begin(self, generation: GenerationState, context: RequestContext) -> JournalEntry:
        """Remember a generation from here on; whoever runs it says how it ends."""
        generation.wants_kv_timeline = self.clock() - self._looked_seconds < _WATCHED_SECONDS
        entry = JournalEntry(
            generation.name,
            context.route,
            num_prompt_tokens=len(generation.prompt.token_ids),
            began_at=time.time(),
            arrival_seconds=generation.prompt.arrival_seconds,
            request=context,
            generation=generation,
        )
        self._entries.append(entry)
        return entry

    def look(self) -> list[JournalEntry]:
        """Return all entries, the latest first; generations that begin soon are told to bring their KV's timeline."""
        self._looked_seconds = self.clock()
        for entry in self._entries:
            entry.settle()
        return list(reversed(self._entries))
