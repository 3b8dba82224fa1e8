"""Answers of POST /v1/completions. What stays the same in every event of a stream is encoded once.

POST /v1/completions.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from baton.gateway.access.request_context import RequestContext, generation_name
from baton.gateway.api.answer import FinishedChoice, Job, answer_stream, answer_whole, encode
from baton.gateway.api.errors import refused
from baton.gateway.api.openai.logprobs import (
    CompletionLogprobs,
    TokenBytes,
    completion_logprobs,
    echoed_logprobs,
    prompt_positions,
)
from baton.gateway.api.openai.schema import MAX_PROMPTS, CompletionBody, decode_body
from baton.gateway.api.sampling import completion_sampling, is_output_dropped, stop_strings
from baton.gateway.api.structured_output import output_constraint
from baton.gateway.api.usage import PlacementBody, UsageBody
from baton.gateway.generation.generator import TextGenerator
from baton.gateway.generation.requests import (
    Delta,
    GenerationRequest,
    GenerationResult,
    Prompt,
    TextPrompt,
    TokenPrompt,
)
from baton.gateway.http.response import HttpResponse


class CompletionFormat:
    """Writes one text completion."""

    def __init__(
        self,
        answer_id: str,
        model: str,
        created_seconds: int,
        *,
        num_logprobs: int | None,
        num_prompt_logprobs: int | None = None,
        has_usage: bool,
        token_bytes: TokenBytes,
        echoes: Sequence[str] = (),
    ) -> None:
        """Begin an answer.

        Args:
            answer_id: Name of the answer.
            model: Served name.
            created_seconds: Unix time.
            num_logprobs: Alternatives told per token; None: no log-probabilities.
            num_prompt_logprobs: Likewise of the prompt, whether or not it is echoed.
            has_usage: Whether a stream's last event reports the usage.
            token_bytes: Gives the bytes of a token.
            echoes: The prompt's text per choice, to be repeated before its output; empty: not asked for.
        """
        self._common = {"id": answer_id, "object": "text_completion", "created": created_seconds, "model": model}
        self._num_logprobs = num_logprobs
        self._num_prompt_logprobs = num_prompt_logprobs
        self._token_bytes = token_bytes
        self._num_characters: dict[int, int] = {}
        self._echoes = dict(enumerate(echoes))
        self._start = b"data: " + encode(self._common)[:-1] + b',"choices":['
        self._tail = b',"usage":null' if has_usage else b""
        self._end = b',"logprobs":null,"finish_reason":null}]' + self._tail + b"}\n\n"

    def delta(self, index: int, delta: Delta) -> bytes:
        """Return the event for new output of a choice, its echo before the first; empty if there is nothing to see."""
        end = self._end
        text = self._echoes.pop(index, "") + delta.text if self._echoes else delta.text
        if self._num_logprobs is not None and delta.logprobs:
            logprobs = self._logprobs(index, delta)
            end = b',"logprobs":' + logprobs + b',"finish_reason":null}]' + self._tail + b"}\n\n"
        elif not text:
            return b""
        return b'%b{"index":%d,"text":%b%b' % (self._start, index, encode(text), end)

    def finish(self, index: int, result: GenerationResult, placement: PlacementBody | None) -> bytes:
        """Return the event with the finish reason."""
        baton = b',"baton":' + encode(placement) if placement is not None else b""
        rest, reason = encode(self._echoes.pop(index, "")), result.reason.encode()
        choice = b'{"index":%d,"text":%b,"logprobs":null,"finish_reason":"%b"}' % (index, rest, reason)
        return self._start + choice + b"]" + self._tail + baton + b"}\n\n"

    def usage(self, usage: UsageBody, placement: PlacementBody) -> bytes:
        """Return the event that reports the usage."""
        return self._start + b'],"usage":' + encode(usage) + b',"baton":' + encode(placement) + b"}\n\n"

    def whole(self, choices: Sequence[FinishedChoice], usage: UsageBody, placement: PlacementBody) -> bytes:
        """Return the body of an answer that is not streamed."""
        bodies = [self._whole_choice(index, choice) for index, choice in enumerate(choices)]
        return encode({**self._common, "choices": bodies, "usage": usage, "baton": placement})

    def _logprobs(self, index: int, delta: Delta) -> bytes:
        body = completion_logprobs(delta.logprobs, self._token_bytes, self._num_characters.get(index, 0))
        self._num_characters[index] = body.text_offset[-1] + len(body.tokens[-1])
        return encode(body)

    def _whole_choice(self, index: int, choice: FinishedChoice) -> dict[str, object]:
        body = {
            "index": index,
            "text": self._echoes.get(index, "") + choice.text,
            "logprobs": self._whole_logprobs(index, choice),
            "finish_reason": choice.result.reason,
        }
        prompt = choice.result.prompt
        if self._num_prompt_logprobs is not None and prompt is not None:
            body["prompt_logprobs"] = prompt_positions(prompt, self._num_prompt_logprobs, self._token_bytes)
        return body

    def _whole_logprobs(self, index: int, choice: FinishedChoice) -> CompletionLogprobs | None:
        if self._num_logprobs is None:
            return None
        prompt = choice.result.prompt
        if index in self._echoes and prompt is not None:
            return echoed_logprobs(prompt, self._num_logprobs, choice.logprobs, self._token_bytes)
        return completion_logprobs(choice.logprobs, self._token_bytes, 0)


DEFAULT_MAX_TOKENS = 16
"""OpenAI's default for text completions."""

MAX_GENERATIONS = 128
"""Choices of all prompts of one request."""

_INT32_MAX = 2**31 - 1


async def answer_completion(generator: TextGenerator, call: RequestContext, response: HttpResponse) -> None:
    """Answer a text completion.

    Raises:
        ApiError: Naming the parameter that cannot be served.
        BatonError: If it cannot be generated.
    """
    completion = decode_body(call.body, CompletionBody)
    job = await _prepare(generator, call, completion)
    has_usage = bool(completion.stream_options and completion.stream_options.include_usage)
    form = CompletionFormat(
        f"cmpl-{call.request_id}",
        completion.model,
        int(time.time()),
        num_logprobs=completion.logprobs,
        num_prompt_logprobs=completion.prompt_logprobs,
        has_usage=has_usage,
        token_bytes=generator.token_bytes,
        echoes=await _echoes(generator, job) if completion.echo else (),
    )
    if completion.stream:
        await answer_stream(response, generator, job, form, has_usage=has_usage)
    else:
        await answer_whole(response, generator, job, form)


async def _prepare(generator: TextGenerator, call: RequestContext, completion: CompletionBody) -> Job:
    prompts = _prompts(completion)
    num_choices = completion.n or 1
    if len(prompts) * num_choices > MAX_GENERATIONS:
        text = f"Invalid value for `n`: {len(prompts)} prompts times {num_choices} choices exceed {MAX_GENERATIONS}"
        raise refused("n", text, code="invalid_value")
    form = output_constraint(completion)
    sampling, stop = completion_sampling(completion, form.constraint), stop_strings(completion)
    name = generation_name(call.request_id)
    requests = [
        GenerationRequest(
            request_id=name,
            model=completion.model,
            prompt=prompt,
            sampling=sampling,
            stop=stop,
            cache_salt=completion.cache_salt or "",
            priority=completion.priority or 0,
            constraint_field=form.field,
            default_max_tokens=DEFAULT_MAX_TOKENS,
            is_output_dropped=is_output_dropped(completion),
        )
        for prompt in prompts
    ]
    prepared = [await generator.prepare(request) for request in requests]
    return Job(call, prepared, num_choices)


async def _echoes(generator: TextGenerator, job: Job) -> Sequence[str]:
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
        raise refused("prompt", f"Invalid value for `prompt`: more than {MAX_PROMPTS} prompts", code="invalid_value")
    return [
        TextPrompt(part) if isinstance(part, str) else _token_prompt(part)
        for part in prompt
        if isinstance(part, str | list)
    ]


def _token_prompt(token_ids: Sequence[int]) -> TokenPrompt:
    if not token_ids or not 0 <= min(token_ids) <= max(token_ids) <= _INT32_MAX:
        raise refused("prompt", "Invalid value for `prompt`: expected token ids, at least one", code="invalid_value")
    return TokenPrompt(token_ids)
