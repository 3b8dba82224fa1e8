"""What traces and metrics learn of a generation."""

from __future__ import annotations

from collections.abc import Callable

from opentelemetry import trace

from baton.gateway.call import Call
from baton.gateway.requests import GenerationResult, PreparedPrompt
from baton.rpc.wire_time import seconds_from_duration
from baton.telemetry import names
from baton.telemetry.metrics import Metrics

_TERMS = ("queue", "pull", "prefill", "transfer", "exposed", "decode")


class Observation:
    """Watches one generation: times for the metrics, results for the span current at first, tokens for its call."""

    def __init__(self, prompt: PreparedPrompt, call: Call, metrics: Metrics, clock: Callable[[], float]) -> None:
        self._prompt = prompt
        self._call = call
        self._metrics = metrics
        self._clock = clock
        self._span = trace.get_current_span()
        self._context = trace.set_span_in_context(self._span)
        self._first_seconds: float | None = None
        self._num_completion_tokens: int | None = None
        self._last_seconds = 0.0
        self.times_tokens = metrics.times_tokens()
        """Whether `note_tokens` is to be called."""

    def note_first_token(self) -> None:
        """Note that output begins."""
        self._first_seconds = self._clock()
        if self._call.first_token_seconds is None:
            self._call.first_token_seconds = self._first_seconds
        seconds = self._first_seconds - self._prompt.arrival_seconds
        self._metrics.record_time_to_first_token(seconds, self._prompt.request.model, self._context)
        self._span.add_event(names.EVENT_FIRST_TOKEN)
        self._last_seconds = self._first_seconds

    def note_tokens(self) -> None:
        """Note output after the first."""
        now_seconds = self._clock()
        gap_seconds, self._last_seconds = now_seconds - self._last_seconds, now_seconds
        self._metrics.record_inter_token_latency(gap_seconds, self._prompt.request.model, self._context)

    def note_result(self, result: GenerationResult) -> None:
        """Note the end."""
        now_seconds = self._clock()
        self._num_completion_tokens = result.num_completion_tokens
        num_further_tokens = result.num_completion_tokens - 1
        seconds_per_token = None
        if self._first_seconds is not None and num_further_tokens > 0:
            seconds_per_token = (now_seconds - self._first_seconds) / num_further_tokens
        duration_seconds = now_seconds - self._prompt.arrival_seconds
        self._metrics.record_end(duration_seconds, seconds_per_token, self._prompt.request.model, self._context)
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
        self._call.num_prompt_tokens += num_prompt_tokens
        self._call.num_completion_tokens += num_tokens
        self._metrics.add_tokens(num_prompt_tokens=num_prompt_tokens, num_output_tokens=num_tokens)
