"""Runs the generations of one request, and writes the answer of REST, streamed or whole, the moment output comes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import NamedTuple, Protocol

import msgspec
from opentelemetry import trace

from baton.gateway.access.admission import RequestContext
from baton.gateway.generation.generator import OnDelta, TextGenerator
from baton.gateway.generation.requests import Delta, GenerationResult, PreparedPrompt
from baton.gateway.http.response import ClientGoneError, HttpResponse, KeepAlive
from baton.telemetry import names
from baton.v1.generation_pb2 import TokenLogprob

DONE = b"data: [DONE]\n\n"
"""Ends a stream of OpenAI's completions that was not broken off."""


class EventWriter:
    """Renders and writes each delta of a choice; while the client does not keep up, holds them and writes them as one.

    Use: inside `with`, which a generation's failure leaves; afterwards nothing is written. Invariant: what is held is
    part of the generation's own output, which its token limit bounds.
    """

    def __init__(self, response: HttpResponse, form: AnswerFormat, index: int) -> None:
        self._response, self._form = response, form
        self._index = index
        self._render: Callable[[Delta], bytes] = self._render_first
        self._is_opened = False
        self._held: _HeldOutput | None = None

    def __enter__(self) -> EventWriter:
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _traceback: object) -> None:
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
            self._held = _HeldOutput()
            self._response.when_writable(self._release)

    async def settle(self) -> None:
        """Wait until nothing is held; raise ClientGoneError if the client takes nothing for too long."""
        while self._held is not None:
            await self._response.wait_writable()

    def opening(self) -> bytes:
        """Return the events before the first output, once: empty if they were written."""
        if self._is_opened:
            return b""
        self._is_opened = True
        self._render = partial(self._form.delta, self._index)
        return self._form.start(self._index)

    def _render_first(self, delta: Delta) -> bytes:
        return self.opening() + self._form.delta(self._index, delta)

    def _release(self) -> None:
        held, self._held = self._held, None
        if held is not None and (delta := held.merged()) is not None:
            self.take(delta)


class _HeldOutput:
    """Deltas that wait for the client."""

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


encode = msgspec.json.encode


class AnswerJob(NamedTuple):
    """The generations of one request; choice `c` of prompt `p` has index `p * num_choices + c`."""

    context: RequestContext
    """The request; it learns what is generated."""
    prompts: Sequence[PreparedPrompt]
    """1 or more."""
    num_choices: int = 1
    """Choices per prompt, 1 or more."""

    @property
    def num_generations(self) -> int:
        """Return the number of choices of all prompts."""
        return len(self.prompts) * self.num_choices

    def begin(self) -> None:
        """Take the places and tokens that the generations need; see `RequestContext.begin` for the errors."""
        self.context.begin(self.num_generations, sum(len(prompt.token_ids) for prompt in self.prompts))


class FinishedChoice(NamedTuple):
    """A finished choice of an answer that is not streamed."""

    deltas: Sequence[Delta]
    """Its output, in order."""
    result: GenerationResult

    @property
    def text(self) -> str:
        """Return its whole text."""
        return "".join(delta.text for delta in self.deltas)

    @property
    def logprobs(self) -> Sequence[TokenLogprob]:
        """Return the log-probabilities of all its tokens."""
        return [logprob for delta in self.deltas for logprob in delta.logprobs]


class AnswerFormat(Protocol):
    """Writes one answer: server-sent events for a stream, or a whole body."""

    def start(self, index: int) -> bytes:
        """Return the events before the first output of a choice; may be empty."""

    def delta(self, index: int, delta: Delta) -> bytes:
        """Return the events for new output of a choice; may be empty."""

    def finish(self, index: int, result: GenerationResult, results: Sequence[GenerationResult]) -> bytes:
        """Return the events that end a choice, or the stream: `results` are all choices', in order, for the last."""

    def whole(self, choices: Sequence[FinishedChoice]) -> bytes:
        """Return the body of an answer that is not streamed."""


async def send_answer(
    response: HttpResponse, generator: TextGenerator, job: AnswerJob, form: AnswerFormat, *, is_stream: bool
) -> None:
    """Run all generations at once, sending output as it comes or one body; raise BatonError if one fails."""
    job.begin()
    describe_answer(job, is_stream=is_stream)
    if is_stream:
        await _stream(response, generator, job, form)
    else:
        await _send_whole(response, generator, job, form)


def describe_answer(job: AnswerJob, *, is_stream: bool) -> None:
    """Tell the operation's span, which is current, what is answered."""
    operation = trace.get_current_span()
    operation.set_attribute(names.GEN_AI_REQUEST_STREAM, is_stream)
    if job.num_choices > 1:
        operation.set_attribute(names.GEN_AI_REQUEST_CHOICE_COUNT, job.num_choices)


async def _stream(response: HttpResponse, generator: TextGenerator, job: AnswerJob, form: AnswerFormat) -> None:
    results: dict[int, GenerationResult] = {}

    async def forward(index: int) -> None:
        with EventWriter(response, form, index) as writer:
            result = await generate_choice(generator, job, index, writer.take)
            await writer.settle()
        results[index] = result
        ordered = [results[each] for each in sorted(results)] if len(results) == job.num_generations else ()
        last = writer.opening() + form.finish(index, result, ordered)
        response.end(last) if ordered else response.write(last)

    response.start_stream()
    with KeepAlive(response, response.stream_idle_seconds):
        await run_all(job.num_generations, forward)


async def _send_whole(response: HttpResponse, generator: TextGenerator, job: AnswerJob, form: AnswerFormat) -> None:
    choices: dict[int, FinishedChoice] = {}

    async def collect(index: int) -> None:
        deltas: list[Delta] = []
        result = await generate_choice(generator, job, index, deltas.append)
        choices[index] = FinishedChoice(deltas, result)

    await run_all(job.num_generations, collect)
    finished = [choices[index] for index in sorted(choices)]
    if any(choice.result.prompt is not None for choice in finished):  # up to 20 alternatives a token: seconds
        body = await asyncio.to_thread(form.whole, finished)
    else:
        body = form.whole(finished)
    response.send(200, body)


async def generate_choice(generator: TextGenerator, job: AnswerJob, index: int, on_delta: OnDelta) -> GenerationResult:
    """Run one of a job's generations; see `TextGenerator.generate` for its errors."""
    prompt_index, choice = divmod(index, job.num_choices)
    name = f"-{index}" if job.num_generations > 1 else ""
    return await generator.generate(job.prompts[prompt_index], job.context, on_delta, choice=choice, name=name)


async def run_all(num_generations: int, run: Callable[[int], Coroutine[None, None, None]]) -> None:
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
