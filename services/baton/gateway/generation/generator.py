"""The core that all APIs share: a prepared prompt becomes text, delta by delta; and what the text of an answer says."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from hashlib import blake2b
from typing import Literal, TypeAlias

from baton.errors import InvalidFieldError, StreamBrokenError
from baton.gateway.access.admission import RequestContext
from baton.gateway.cluster.attempt import planned_summary
from baton.gateway.cluster.token_stream import TokenStreams
from baton.gateway.generation.observation import GenerationObserver, Journal, describe_request
from baton.gateway.generation.preparation import SEED_BITS, Preparation
from baton.gateway.generation.requests import (
    Delta,
    EndReason,
    GenerationRequest,
    GenerationResult,
    GenerationState,
    PreparedPrompt,
    PromptLogprobs,
)
from baton.gateway.generation.tools import new_tool_call_id
from baton.internal.v1.decode_service_pb2 import Finished
from baton.telemetry.metrics import Metrics
from baton.text.markers import StopScanner
from baton.text.output_parser import OutputParser
from baton.text.output_parts import CallEnd, CallStart, OutputPart, joined
from baton.v1.generation_pb2 import FINISH_REASON_LENGTH, SamplingParameters, TokenLogprob

OnDelta: TypeAlias = Callable[[Delta], None]
"""Takes output the moment it is there; must not block. What it raises ends the generation."""


class TextGenerator:
    """Prepares requests and runs their generations. Holds no state of a request."""

    def __init__(
        self, preparation: Preparation, token_streams: TokenStreams, metrics: Metrics, journal: Journal
    ) -> None:
        self.preparation = preparation
        """Tokenizes, for what generates nothing."""
        self._token_streams, self._metrics = token_streams, metrics
        self._journal = journal

    async def prepare(self, request: GenerationRequest, context: RequestContext) -> PreparedPrompt:
        """Return the request with everything that placing needs; see `Preparation.prepare` for its errors."""
        describe_request(request)
        try:
            return await self.preparation.prepare(request, context.key)
        except InvalidFieldError as error:
            raise request.in_words_of_client(error) from error

    async def template_names(self, model: str) -> Collection[str]:
        """Return the names that a model's chat template may read; see `ModelCatalog.model` for the errors."""
        return (await self.preparation.catalog.model(model)).text.model_format.template_names

    async def generate(
        self, prompt: PreparedPrompt, context: RequestContext, on_delta: OnDelta, *, choice: int = 0, name: str = ""
    ) -> GenerationResult:
        """Run one generation; cancelling this cancels it on its node.

        `on_delta` is told of all output, in order, without a wake-up of this task; never after this has returned.
        `choice` decides the seed; `name` makes the generation's name unique within the request. Raises BatonError if it
        cannot be finished on any node.
        """
        generation = GenerationState(
            prompt.request.request_id + name,
            prompt,
            _choice_sampling(prompt.sampling, choice),
            begun_seconds=asyncio.get_running_loop().time(),
            tenant=context.key_name,
            tenant_id=self.preparation.tenants.id_of(context.key_name),
            tenant_weight=context.key.weight,
            objectives=context.objectives,
            priority=max(prompt.request.priority, context.key.earliest_priority),
        )
        observer = GenerationObserver(generation, context, self._metrics, self._journal, is_first_choice=choice == 0)
        output = _Output(prompt, observer, (lambda _delta: None) if prompt.request.is_output_dropped else on_delta)
        try:
            with observer:
                finished = await self._token_streams.follow(generation, output.take)
                del generation.output_token_ids[observer.num_tokens :]  # what the node sent after a stop string
                if finished is not None:
                    output.flush()
                result = _result(generation, finished, output.stop)
                result = _with_prompt(_with_reasoning(result, generation), generation)
                observer.note_result(result)
                return result
        except InvalidFieldError as error:
            raise prompt.request.in_words_of_client(error) from error


class _Output:
    """Text of one generation: tokens to characters, cut at the first stop string.

    Every token counts, and is told with its log-probability, up to the one that ends the generation: an end token,
    which has no text, or that which completes a stop string. How tokens are batched on their way changes nothing.
    """

    def __init__(self, prompt: PreparedPrompt, observer: GenerationObserver, on_delta: OnDelta) -> None:
        self._end_token_ids = prompt.end_token_ids
        self._is_stop_shown = prompt.request.is_stop_shown
        self._detokenizer = prompt.text.detokenizers.make(prompt.kept_token_ids)
        self._scanner = StopScanner(prompt.request.stop) if prompt.request.stop else None
        self._observer, self._on_delta = observer, on_delta
        self._has_begun = False
        self._times_tokens = observer.times_tokens
        self.stop: str | None = None
        """The stop string that was found."""

    def take(self, token_ids: Sequence[int], logprobs: Sequence[TokenLogprob]) -> bool:
        """Hand on what tokens add; return whether a stop string ends the text."""
        if self._scanner is None:
            text = self._text(token_ids)
        else:
            text, num_taken = self._scan(self._scanner, token_ids)
            token_ids, logprobs = token_ids[:num_taken], logprobs[:num_taken]
        self._observer.num_tokens += len(token_ids)
        if not self._has_begun:
            self._has_begun = True
            self._observer.note_first_token()
        elif self._times_tokens:
            self._observer.note_tokens()
        self._on_delta(Delta(text, token_ids, logprobs))
        return self.stop is not None

    def flush(self) -> None:
        """Hand on the text held back at the end; it may still hold a stop string."""
        text = self._detokenizer.flush()
        if self._scanner is not None:
            text = self._shown(self._scanner, text)
            text += self._scanner.flush() if self.stop is None else ""
        if text:
            self._on_delta(Delta(text, (), ()))

    def _text(self, token_ids: Sequence[int]) -> str:
        """Return the text that tokens add; that of an end token only where what stops is to be shown."""
        if token_ids[-1] in self._end_token_ids and not self._is_stop_shown:
            token_ids = token_ids[:-1]
        return self._detokenizer.push(token_ids)

    def _scan(self, scanner: StopScanner, token_ids: Sequence[int]) -> tuple[str, int]:
        """Return the text of tokens up to a stop string, and how many of them it takes."""
        shown = ""
        for index, token_id in enumerate(token_ids):
            shown += self._shown(scanner, self._text((token_id,)))
            if self.stop is not None:
                return shown, index + 1
        return shown, len(token_ids)

    def _shown(self, scanner: StopScanner, text: str) -> str:
        shown, self.stop = scanner.push(text)
        return shown + self.stop if self.stop is not None and self._is_stop_shown else shown


def _choice_sampling(sampling: SamplingParameters, choice: int) -> SamplingParameters:
    """Return how one of several choices is sampled: the first has the request's seed, the others depend on it alone."""
    if choice == 0:
        return sampling
    own = SamplingParameters()
    own.CopyFrom(sampling)
    digest = blake2b(f"baton/choice\0{sampling.seed}\0{choice}".encode(), digest_size=8).digest()
    own.seed = int.from_bytes(digest, "little") >> (64 - SEED_BITS)
    return own


def _with_reasoning(result: GenerationResult, generation: GenerationState) -> GenerationResult:
    """Return the result with the tokens of the reasoning counted, where the answer is read for it."""
    prompt = generation.prompt
    if prompt.request.tool_use is None:
        return result
    count = prompt.text.model_format.count_reasoning
    num_tokens = count(generation.output_token_ids, is_in_reasoning=prompt.is_in_reasoning)
    return result._replace(num_reasoning_tokens=num_tokens)


def _with_prompt(result: GenerationResult, generation: GenerationState) -> GenerationResult:
    """Return a result with what was asked of the prompt alone; raise StreamBrokenError if some of it is missing."""
    prompt = generation.prompt
    if prompt.request.is_output_dropped:
        result = result._replace(num_completion_tokens=0, reason="length", stop=None)
    if not prompt.sampling.HasField("prompt_logprob_count"):
        return result
    logprobs, num_expected = generation.prompt_logprobs, len(prompt.token_ids) - 1
    if len(logprobs) != num_expected:
        raise StreamBrokenError(f"expected log-probabilities of {num_expected} prompt tokens, got {len(logprobs)}")
    return result._replace(prompt=PromptLogprobs(prompt.token_ids[0], logprobs))


def _result(generation: GenerationState, finished: Finished | None, stop: str | None) -> GenerationResult:
    """Return how a generation ended. `finished`: None after a stop string; `stop` may be complete just now."""
    is_cut = finished is not None and finished.reason == FINISH_REASON_LENGTH and stop is None
    assert generation.placement is not None
    num_prompt_tokens = len(generation.prompt.token_ids)
    if finished is not None:
        num_cached_tokens, summary = finished.usage.cached_token_count, finished.summary
    else:
        num_cached_tokens, summary = generation.num_expected_cached_tokens, planned_summary(generation.placement)
    return GenerationResult(
        reason="length" if is_cut else "stop",
        num_prompt_tokens=num_prompt_tokens,
        num_cached_tokens=min(num_cached_tokens, num_prompt_tokens),
        num_completion_tokens=len(generation.output_token_ids),
        seed=generation.sampling.seed,
        num_attempts=generation.num_attempts,
        summary=summary,
        stop=stop,
        degraded_max_tokens=generation.degraded_max_tokens,
    )


AnswerEnd = EndReason | Literal["tool_calls"]
"""Why an answer ended, once it has been read."""


def answer_parser(prompt: PreparedPrompt) -> OutputParser | None:
    """Return what parses one answer to a prompt; None: its text is all there is."""
    use = prompt.request.tool_use
    if use is None:
        return None
    model_format = prompt.text.model_format
    return model_format.parser(use.offered, is_in_reasoning=prompt.is_in_reasoning, is_parallel=use.is_parallel)


class AnswerReader:
    """Reads one answer, and knows whether it calls: its last call has an end then."""

    def __init__(self, parser: OutputParser, tool_format: str) -> None:
        self._parser, self._tool_format = parser, tool_format
        self._has_calls = False

    def push(self, text: str) -> Sequence[OutputPart]:
        """Return what became known by the next text."""
        return self._noted(joined(self._parser.push(text))) if text else ()

    def finish(self) -> Sequence[OutputPart]:
        """Return what was held back; no more text comes."""
        return self._noted(joined(self._parser.finish()))

    def end(self, reason: EndReason) -> AnswerEnd:
        """Return why the answer ended; after all text was read."""
        return "tool_calls" if self._has_calls and reason == "stop" else reason

    def new_call_id(self) -> str:
        """Return a name for a call that begins."""
        return new_tool_call_id(self._tool_format)

    def _noted(self, parts: Sequence[OutputPart]) -> Sequence[OutputPart]:
        for part in parts:
            if isinstance(part, CallStart | CallEnd):
                self._has_calls = isinstance(part, CallEnd)
        return parts


def answer_reader(prompt: PreparedPrompt) -> AnswerReader | None:
    """Return what reads one answer to a prompt; None: its text is all there is."""
    parser = answer_parser(prompt)
    if parser is None:
        return None
    return AnswerReader(parser, prompt.text.model_format.output_format.tool_format)
