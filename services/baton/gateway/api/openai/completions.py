"""POST /v1/completions: from its body to generations, and from their output to its answer."""

from __future__ import annotations

from collections.abc import Sequence

from baton.gateway.access.admission import RequestContext, generation_name
from baton.gateway.api.answer import AnswerJob, FinishedChoice, encode, send_answer
from baton.gateway.api.body import FIELD_NAMES, num_choices, num_logprobs, session_name, token_limit
from baton.gateway.api.endpoint import Exchange
from baton.gateway.api.errors import invalid, refused
from baton.gateway.api.openai import logprobs
from baton.gateway.api.openai.chat import completion_sampling, refuse_in_stream, stop_strings
from baton.gateway.api.openai.events import CompletionWriter
from baton.gateway.api.openai.schema import CompletionBody
from baton.gateway.api.structured_output import output_constraint
from baton.gateway.generation.generator import TextGenerator
from baton.gateway.generation.requests import (
    STRUCTURED_OUTPUT,
    Delta,
    GenerationRequest,
    GenerationResult,
    Prompt,
    TextPrompt,
    TokenPrompt,
)
from baton.v1.generation_pb2 import SamplingParameters, StructuredOutput

DEFAULT_MAX_TOKENS = 16
"""OpenAI's default for text completions."""

MAX_PROMPTS = 64
MAX_GENERATIONS = 128
"""Choices of all prompts of one request."""

_INT32_MAX = 2**31 - 1


async def answer_completion(generator: TextGenerator, exchange: Exchange) -> None:
    """Answer a text completion; raise ApiError naming what is not served, BatonError if generating fails."""
    completion: CompletionBody = exchange.body
    job = await _prepare(generator, exchange.context, completion)
    echoes = await _echoes(generator, job) if completion.echo else ()
    form = CompletionFormat(job, completion, job.prompts[0].text.detokenizers.token_bytes, echoes)
    await send_answer(exchange.response, generator, job, form, is_stream=bool(completion.stream))


async def _prepare(generator: TextGenerator, context: RequestContext, completion: CompletionBody) -> AnswerJob:
    count, prompts = num_choices(completion), _prompts(completion)
    if len(prompts) * count > MAX_GENERATIONS:
        raise invalid("n", f"{len(prompts)} prompts times {count} choices exceed {MAX_GENERATIONS}")
    constraint = output_constraint(completion)
    is_output_dropped = _is_output_dropped(completion)
    sampling, stop = _sampling(completion, constraint.constraint), stop_strings(completion)
    name = generation_name(context.request_id)
    requests = [
        GenerationRequest(
            request_id=name,
            model=completion.model,
            prompt=prompt,
            sampling=sampling,
            stop=stop,
            is_stop_shown=bool(completion.include_stop_str_in_output),
            bad_words=tuple(completion.bad_words or ()),
            cache_salt=completion.cache_salt or "",
            session=session_name(completion.prompt_cache_key),
            priority=completion.priority or 0,
            field_names=FIELD_NAMES | {STRUCTURED_OUTPUT: constraint.field},
            default_max_tokens=DEFAULT_MAX_TOKENS,
            is_output_dropped=is_output_dropped,
        )
        for prompt in prompts
    ]
    return AnswerJob(context, [await generator.prepare(request, context) for request in requests], count)


def _sampling(body: CompletionBody, constraint: StructuredOutput | None) -> SamplingParameters:
    sampling = completion_sampling(body, constraint)
    if body.max_tokens is not None:
        # The last position is computed for the prompt's sake: its token costs nothing, and is dropped.
        sampling.max_token_count = 1 if _is_output_dropped(body) else token_limit("max_tokens", body.max_tokens)
    if body.logprobs is not None:
        sampling.top_logprob_count = num_logprobs("logprobs", body.logprobs)
        if body.echo:
            refuse_in_stream(body, "logprobs", "`logprobs` of a prompt that is echoed")
            sampling.prompt_logprob_count = max(body.logprobs, sampling.prompt_logprob_count)
    return sampling


def _is_output_dropped(body: CompletionBody) -> bool:
    """Return whether a body asks for its prompt alone, echoed; raise ApiError, 400, if it is to be streamed."""
    is_dropped = bool(body.echo) and body.max_tokens == 0
    if is_dropped:
        refuse_in_stream(body, "max_tokens", "a limit of 0 tokens")
    return is_dropped


async def _echoes(generator: TextGenerator, job: AnswerJob) -> Sequence[str]:
    """Return the text of each choice's prompt: as it was given, or what its tokens stand for."""
    texts: list[str] = []
    for prompt in job.prompts:
        given = prompt.request.prompt
        if isinstance(given, TextPrompt):
            text = given.text
        else:
            text = await generator.preparation.detokenize(prompt.request.model, prompt.token_ids)
        texts += [text] * job.num_choices
    return texts


def _prompts(completion: CompletionBody) -> Sequence[Prompt]:
    """Return the prompts of the four forms: a string, strings, tokens, or lists of tokens."""
    prompt = completion.prompt
    if isinstance(prompt, str):
        return [TextPrompt(prompt)]
    if not prompt:
        raise refused("prompt", "Invalid value for `prompt`: expected at least one", code="empty_array")
    if len({type(part) for part in prompt}) > 1:
        raise refused("prompt", "Invalid type for `prompt`: strings and tokens cannot be mixed", code="invalid_type")
    if isinstance(prompt[0], int):
        return [_token_prompt([part for part in prompt if isinstance(part, int)])]
    if len(prompt) > MAX_PROMPTS:
        raise invalid("prompt", f"more than {MAX_PROMPTS} prompts")
    return [
        TextPrompt(part) if isinstance(part, str) else _token_prompt(part)
        for part in prompt
        if isinstance(part, str | list)
    ]


def _token_prompt(token_ids: Sequence[int]) -> TokenPrompt:
    if not token_ids or not 0 <= min(token_ids) <= max(token_ids) <= _INT32_MAX:
        raise invalid("prompt", "expected token ids, at least one")
    return TokenPrompt(token_ids)


class CompletionFormat(CompletionWriter):
    """Writes one text completion."""

    _CHOICE_END = b',"logprobs":null,"finish_reason":null}]'

    def __init__(
        self, job: AnswerJob, body: CompletionBody, token_bytes: logprobs.TokenBytes, echoes: Sequence[str] = ()
    ) -> None:
        """Begin an answer. `echoes` has the prompt's text per choice, repeated before its output; empty: none."""
        super().__init__(job, "cmpl", "text_completion", body)
        self._num_logprobs = body.logprobs
        self._num_prompt_logprobs = body.prompt_logprobs
        self._token_bytes = token_bytes
        self._num_characters: dict[int, int] = {}
        self._echoes = dict(enumerate(echoes))

    def start(self, index: int) -> bytes:
        """Return nothing, as a choice begins with its first text, or the event with the prompt's tokens."""
        if not self._has_token_ids:
            return b""
        ids = self._token_ids(self._prompts[index // self._num_choices], b"prompt_token_ids")
        return b'%b{"index":%d,"text":""%b%b}]%b}\n\n' % (self._start, index, self._CHOICE_END[:-2], ids, self._tail)

    def delta(self, index: int, delta: Delta) -> bytes:
        """Return the event for new output of a choice, its echo before the first; empty if there is nothing to see."""
        self._count(index, len(delta.token_ids))
        logprobs = b"null"
        text = self._echoes.pop(index, "") + delta.text if self._echoes else delta.text
        if self._num_logprobs is not None and delta.logprobs:
            logprobs = self._logprobs(index, delta)
        elif not (text or self._has_token_ids):
            return b""
        return b'%b{"index":%d,"text":%b%b' % (self._start, index, encode(text), self._end_of(delta, logprobs))

    def finish(self, index: int, result: GenerationResult, results: Sequence[GenerationResult]) -> bytes:
        """Return the event with the finish reason, and what ends the stream."""
        rest, reason = encode(self._echoes.pop(index, "")), result.reason.encode()
        choice = b'{"index":%d,"text":%b,"logprobs":null,"finish_reason":"%b"%b}'
        choice %= index, rest, reason, self._stop_reason(result)
        return self._last_event(index, choice, results)

    def whole(self, choices: Sequence[FinishedChoice]) -> bytes:
        """Return the body of an answer that is not streamed."""
        return encode(self._body(choices, [self._whole_choice(index, choice) for index, choice in enumerate(choices)]))

    def _logprobs(self, index: int, delta: Delta) -> bytes:
        body = logprobs.completion_logprobs(delta.logprobs, self._token_bytes, self._num_characters.get(index, 0))
        self._num_characters[index] = body.text_offset[-1] + len(body.tokens[-1])
        return encode(body)

    def _whole_choice(self, index: int, choice: FinishedChoice) -> dict[str, object]:
        body: dict[str, object] = {
            "index": index,
            "text": self._echoes.get(index, "") + choice.text,
            "logprobs": self._whole_logprobs(index, choice),
            "finish_reason": choice.result.reason,
            **self._further_fields(choice),
        }
        if self._has_token_ids:
            body["prompt_token_ids"] = list(self._prompts[index // self._num_choices])
        prompt = choice.result.prompt
        if self._num_prompt_logprobs is not None and prompt is not None:
            body["prompt_logprobs"] = logprobs.prompt_positions(prompt, self._num_prompt_logprobs, self._token_bytes)
        return body

    def _whole_logprobs(self, index: int, choice: FinishedChoice) -> logprobs.CompletionLogprobs | None:
        if self._num_logprobs is None:
            return None
        prompt = choice.result.prompt
        if index in self._echoes and prompt is not None:
            return logprobs.echoed_logprobs(prompt, self._num_logprobs, choice.logprobs, self._token_bytes)
        return logprobs.completion_logprobs(choice.logprobs, self._token_bytes, 0)
