"""POST /v1/completions."""

from __future__ import annotations

import time
from collections.abc import Sequence

from baton.gateway.answer import Job, answer_stream, answer_whole
from baton.gateway.call import Call
from baton.gateway.completion_format import CompletionFormat
from baton.gateway.generation import Generator
from baton.gateway.http_response import HttpResponse
from baton.gateway.openai_errors import refused
from baton.gateway.openai_sampling import completion_sampling, is_output_dropped, stop_strings
from baton.gateway.openai_schema import MAX_PROMPTS, CompletionBody, decode_body
from baton.gateway.output_form import output_form
from baton.gateway.request_id import generation_name
from baton.gateway.requests import GenerationRequest, Prompt, TextPrompt, TokenPrompt

DEFAULT_MAX_TOKENS = 16
"""OpenAI's default for text completions."""

MAX_GENERATIONS = 128
"""Choices of all prompts of one request."""

_INT32_MAX = 2**31 - 1


async def answer_completion(generator: Generator, call: Call, response: HttpResponse) -> None:
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


async def _prepare(generator: Generator, call: Call, completion: CompletionBody) -> Job:
    prompts = _prompts(completion)
    num_choices = completion.n or 1
    if len(prompts) * num_choices > MAX_GENERATIONS:
        text = f"Invalid value for `n`: {len(prompts)} prompts times {num_choices} choices exceed {MAX_GENERATIONS}"
        raise refused("n", text, code="invalid_value")
    form = output_form(completion)
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
            form_field=form.field,
            default_max_tokens=DEFAULT_MAX_TOKENS,
            is_output_dropped=is_output_dropped(completion),
        )
        for prompt in prompts
    ]
    prepared = [await generator.prepare(request) for request in requests]
    return Job(call, prepared, num_choices)


async def _echoes(generator: Generator, job: Job) -> Sequence[str]:
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
