"""Runs the generations of one REST request and writes its answer, streamed or whole."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from contextlib import aclosing
from typing import NamedTuple

from baton.gateway.answer_format import DONE, AnswerFormat, Choice
from baton.gateway.call import Call
from baton.gateway.generation import Generator
from baton.gateway.http_response import HttpResponse
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
        choices[index] = await _collect(_generation(generator, job, index))

    await _run_all(job.num_generations, collect)
    finished = [choice for choice in choices if choice is not None]
    results = [choice.result for choice in finished]
    body = form.whole(finished, usage_body(_by_prompt(job, results)), placement_body(job.call.request_id, results))
    response.send(200, body)


async def answer_stream(
    response: HttpResponse, generator: Generator, job: Job, form: AnswerFormat, *, has_usage: bool
) -> None:
    """Run all generations at once and send their output as it comes."""
    results: dict[int, GenerationResult] = {}

    async def forward(index: int) -> None:
        async with aclosing(_generation(generator, job, index)) as elements:
            async for element in elements:
                if isinstance(element, Delta):
                    response.write(form.delta(index, element))
                    if not response.is_writable:
                        await response.wait_writable()
                    continue
                results[index] = element
                is_last = len(results) == job.num_generations and not has_usage
                placement = placement_body(job.call.request_id, _in_order(results)) if is_last else None
                last = form.finish(index, element, placement)
                response.end(last + DONE) if is_last else response.write(last)

    response.start_stream()
    await _run_all(job.num_generations, forward)
    if has_usage:
        ordered = _in_order(results)
        usage = form.usage(usage_body(_by_prompt(job, ordered)), placement_body(job.call.request_id, ordered))
        response.end(usage + DONE)


def _generation(generator: Generator, job: Job, index: int) -> AsyncGenerator[Delta | GenerationResult, None]:
    prompt_index, choice = divmod(index, job.num_choices)
    name = f"-{index}" if job.num_generations > 1 else ""
    return generator.generate(job.prompts[prompt_index], job.call, choice=choice, name=name)


async def _collect(generation: AsyncGenerator[Delta | GenerationResult, None]) -> Choice:
    texts: list[str] = []
    logprobs: list[TokenLogprob] = []
    async with aclosing(generation) as elements:
        async for element in elements:
            if isinstance(element, GenerationResult):
                return Choice("".join(texts), logprobs, element)
            texts.append(element.text)
            logprobs += element.logprobs
    raise AssertionError("a generation ended without its result")


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
