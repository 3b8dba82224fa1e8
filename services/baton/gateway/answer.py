"""Runs the generations of one REST request and writes its answer, streamed or whole."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import NamedTuple

from baton.gateway.answer_format import DONE, AnswerFormat, Choice
from baton.gateway.call import Call
from baton.gateway.event_writer import EventWriter
from baton.gateway.generation import Generator, OnDelta
from baton.gateway.http_response import HttpResponse
from baton.gateway.keep_alive import KeepAlive
from baton.gateway.openai_usage import placement_body, usage_body
from baton.gateway.requests import Delta, GenerationResult, PreparedPrompt
from baton.v1.generation_pb2 import TokenLogprob


class Job(NamedTuple):
    """The generations of one request; choice `c` of prompt `p` has index `p * num_choices + c`."""

    call: Call
    """The request; it learns what is generated."""
    prompts: Sequence[PreparedPrompt]
    """1 or more."""
    num_choices: int
    """Choices per prompt, 1 or more."""

    @property
    def num_generations(self) -> int:
        """Return the number of choices of all prompts."""
        return len(self.prompts) * self.num_choices


async def answer_whole(response: HttpResponse, generator: Generator, job: Job, form: AnswerFormat) -> None:
    """Run all generations at once and send one body."""
    choices: list[Choice | None] = [None] * job.num_generations

    async def collect(index: int) -> None:
        choices[index] = await _collect(generator, job, index)

    await _run_all(job.num_generations, collect)
    finished = [choice for choice in choices if choice is not None]
    results = [choice.result for choice in finished]
    usage, placement = usage_body(_by_prompt(job, results)), placement_body(job.call.request_id, results)
    if any(result.prompt is not None for result in results):  # long prompts, up to 20 alternatives a token: seconds
        body = await asyncio.to_thread(form.whole, finished, usage, placement)
    else:
        body = form.whole(finished, usage, placement)
    response.send(200, body)


async def answer_stream(
    response: HttpResponse, generator: Generator, job: Job, form: AnswerFormat, *, has_usage: bool
) -> None:
    """Run all generations at once and send their output as it comes."""
    results: dict[int, GenerationResult] = {}

    async def forward(index: int) -> None:
        with EventWriter(response, partial(form.delta, index)) as writer:
            result = await _generate(generator, job, index, writer.take)
            await writer.settle()
        results[index] = result
        is_last = len(results) == job.num_generations and not has_usage
        placement = placement_body(job.call.request_id, _in_order(results)) if is_last else None
        last = form.finish(index, result, placement)
        response.end(last + DONE) if is_last else response.write(last)

    response.start_stream()
    with KeepAlive(response, response.stream_idle_seconds):
        await _run_all(job.num_generations, forward)
    if has_usage:
        ordered = _in_order(results)
        usage = form.usage(usage_body(_by_prompt(job, ordered)), placement_body(job.call.request_id, ordered))
        response.end(usage + DONE)


async def _generate(generator: Generator, job: Job, index: int, on_delta: OnDelta) -> GenerationResult:
    prompt_index, choice = divmod(index, job.num_choices)
    name = f"-{index}" if job.num_generations > 1 else ""
    return await generator.generate(job.prompts[prompt_index], job.call, on_delta, choice=choice, name=name)


async def _collect(generator: Generator, job: Job, index: int) -> Choice:
    texts: list[str] = []
    logprobs: list[TokenLogprob] = []

    def collect(delta: Delta) -> None:
        texts.append(delta.text)
        logprobs.extend(delta.logprobs)

    result = await _generate(generator, job, index, collect)
    return Choice("".join(texts), logprobs, result)


async def _run_all(num_generations: int, run: Callable[[int], Coroutine[None, None, None]]) -> None:
    """Run generations at once; the first failure cancels the others and is raised as it is."""
    if num_generations == 1:
        await run(0)
        return
    try:
        async with asyncio.TaskGroup() as tasks:
            for index in range(num_generations):
                tasks.create_task(run(index))
    except BaseExceptionGroup as group:
        raise group.exceptions[0] from None


def _in_order(results: dict[int, GenerationResult]) -> list[GenerationResult]:
    return [results[index] for index in sorted(results)]


def _by_prompt(job: Job, results: Sequence[GenerationResult]) -> list[Sequence[GenerationResult]]:
    return [results[start : start + job.num_choices] for start in range(0, len(results), job.num_choices)]
