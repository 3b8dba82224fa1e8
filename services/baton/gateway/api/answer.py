"""What chat and text completions have in common in their answers, and where they differ.

Writes the output of one generation to its client, the moment it comes.

Runs the generations of one REST request and writes its answer, streamed or whole.

Runs the one generation of a request that has no choices, and writes its answer, streamed or whole.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from types import TracebackType
from typing import NamedTuple, Protocol

import msgspec

from baton.gateway.access.request_context import RequestContext
from baton.gateway.api.usage import PlacementBody, UsageBody, placement_body, usage_body
from baton.gateway.generation.generator import OnDelta, TextGenerator
from baton.gateway.generation.requests import Delta, GenerationResult, PreparedPrompt
from baton.gateway.http.response import ClientGoneError, HttpResponse, KeepAlive
from baton.v1.generation_pb2 import TokenLogprob

DONE = b"data: [DONE]\n\n"
"""Ends a stream that was not broken off."""

encode = msgspec.json.encode


class FinishedChoice(NamedTuple):
    """A finished choice of an answer that is not streamed."""

    text: str
    logprobs: Sequence[TokenLogprob]
    result: GenerationResult


class AnswerFormat(Protocol):
    """Writes one answer: server-sent events for a stream, or a whole body."""

    def delta(self, index: int, delta: Delta) -> bytes:
        """Return the events for new output of a choice, its opening before the first; may be empty."""

    def finish(self, index: int, result: GenerationResult, placement: PlacementBody | None) -> bytes:
        """Return the events that end a choice."""

    def usage(self, usage: UsageBody, placement: PlacementBody) -> bytes:
        """Return the event that reports the usage."""

    def whole(self, choices: Sequence[FinishedChoice], usage: UsageBody, placement: PlacementBody) -> bytes:
        """Return the body of an answer that is not streamed."""


class EventWriter:
    """Renders and writes each delta; while the client does not keep up, holds them and writes them as one.

    Use: inside `with`, which a generation's failure leaves; afterwards nothing is written. Invariant: what is held is
    part of the generation's own output, which its token limit bounds.
    """

    def __init__(self, response: HttpResponse, render: Callable[[Delta], bytes]) -> None:
        self._response = response
        self._render = render
        self._held: _Held | None = None

    def __enter__(self) -> EventWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Let go of what is held: it is written if an error event follows, and the client is still there."""
        held, self._held = self._held, None
        is_heard = isinstance(error, Exception) and not isinstance(error, ClientGoneError)
        if held is not None and is_heard and (delta := held.merged()) is not None:
            self._response.write(self._render(delta))

    def take(self, delta: Delta) -> None:
        """Write a delta, or hold it."""
        if self._held is not None:
            self._held.add(delta)
            return
        if not self._response.write(self._render(delta)):
            self._hold()

    async def settle(self) -> None:
        """Wait until nothing is held.

        Raises:
            ClientGoneError: If the client takes nothing for too long.
        """
        while self._held is not None:
            await self._response.wait_writable()

    def _hold(self) -> None:
        self._held = _Held()
        self._response.when_writable(self._release)

    def _release(self) -> None:
        held, self._held = self._held, None
        if held is not None and (delta := held.merged()) is not None:
            self.take(delta)


class _Held:
    """Deltas that wait."""

    def __init__(self) -> None:
        self._texts: list[str] = []
        self._token_ids: list[int] = []
        self._logprobs: list[TokenLogprob] = []

    def add(self, delta: Delta) -> None:
        self._texts.append(delta.text)
        self._token_ids += delta.token_ids
        self._logprobs += delta.logprobs

    def merged(self) -> Delta | None:
        return Delta("".join(self._texts), self._token_ids, self._logprobs) if self._texts else None


class Job(NamedTuple):
    """The generations of one request; choice `c` of prompt `p` has index `p * num_choices + c`."""

    call: RequestContext
    """The request; it learns what is generated."""
    prompts: Sequence[PreparedPrompt]
    """1 or more."""
    num_choices: int
    """Choices per prompt, 1 or more."""

    @property
    def num_generations(self) -> int:
        """Return the number of choices of all prompts."""
        return len(self.prompts) * self.num_choices


async def answer_whole(response: HttpResponse, generator: TextGenerator, job: Job, form: AnswerFormat) -> None:
    """Run all generations at once and send one body."""
    choices: list[FinishedChoice | None] = [None] * job.num_generations

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
    response: HttpResponse, generator: TextGenerator, job: Job, form: AnswerFormat, *, has_usage: bool
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


async def _generate(generator: TextGenerator, job: Job, index: int, on_delta: OnDelta) -> GenerationResult:
    prompt_index, choice = divmod(index, job.num_choices)
    name = f"-{index}" if job.num_generations > 1 else ""
    return await generator.generate(job.prompts[prompt_index], job.call, on_delta, choice=choice, name=name)


async def _collect(generator: TextGenerator, job: Job, index: int) -> FinishedChoice:
    texts: list[str] = []
    logprobs: list[TokenLogprob] = []

    def collect(delta: Delta) -> None:
        texts.append(delta.text)
        logprobs.extend(delta.logprobs)

    result = await _generate(generator, job, index, collect)
    return FinishedChoice("".join(texts), logprobs, result)


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


class SingleFormat(Protocol):
    """Writes one answer: server-sent events for a stream, or a whole body."""

    def start(self) -> bytes:
        """Return the events before the first text."""

    def delta(self, delta: Delta) -> bytes:
        """Return the events for new output; may be empty."""

    def finish(self, result: GenerationResult) -> bytes:
        """Return the events that end the stream."""

    def whole(self, result: GenerationResult) -> bytes:
        """Return the body of an answer that is not streamed, after all its output went through `delta`."""


async def answer_single(
    response: HttpResponse,
    generator: TextGenerator,
    call: RequestContext,
    prompt: PreparedPrompt,
    form: SingleFormat,
    *,
    is_stream: bool,
) -> None:
    """Generate and send.

    Raises:
        BatonError: If it cannot be generated.
    """
    if is_stream:
        await _stream(response, generator, call, prompt, form)
    else:
        await _send_whole(response, generator, call, prompt, form)


async def _stream(
    response: HttpResponse, generator: TextGenerator, call: RequestContext, prompt: PreparedPrompt, form: SingleFormat
) -> None:
    response.start_stream()
    is_started = False

    def start() -> bytes:
        nonlocal is_started
        is_first, is_started = not is_started, True
        return form.start() if is_first else b""

    with (
        KeepAlive(response, response.stream_idle_seconds),
        EventWriter(response, lambda delta: start() + form.delta(delta)) as writer,
    ):
        result = await generator.generate(prompt, call, writer.take)
        await writer.settle()
    response.end(start() + form.finish(result))


async def _send_whole(
    response: HttpResponse, generator: TextGenerator, call: RequestContext, prompt: PreparedPrompt, form: SingleFormat
) -> None:
    def take(delta: Delta) -> None:
        form.delta(delta)

    result = await generator.generate(prompt, call, take)
    response.send(200, form.whole(result))
