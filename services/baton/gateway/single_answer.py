"""Runs the one generation of a request that has no choices, and writes its answer, streamed or whole."""

from __future__ import annotations

from typing import Protocol

from baton.gateway.call import Call
from baton.gateway.event_writer import EventWriter
from baton.gateway.generation import Generator
from baton.gateway.http_response import HttpResponse
from baton.gateway.requests import Delta, GenerationResult, PreparedPrompt


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
    generator: Generator,
    call: Call,
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
    response: HttpResponse, generator: Generator, call: Call, prompt: PreparedPrompt, form: SingleFormat
) -> None:
    response.start_stream()

    def render(delta: Delta) -> bytes:
        start = b"" if response.is_begun else form.start()
        return start + form.delta(delta)

    writer = EventWriter(response, render)
    result = await generator.generate(prompt, call, writer.take)
    await writer.settle()
    start = b"" if response.is_begun else form.start()
    response.end(start + form.finish(result))


async def _send_whole(
    response: HttpResponse, generator: Generator, call: Call, prompt: PreparedPrompt, form: SingleFormat
) -> None:
    def take(delta: Delta) -> None:
        form.delta(delta)

    result = await generator.generate(prompt, call, take)
    response.send(200, form.whole(result))
