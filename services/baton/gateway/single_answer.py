"""Runs the one generation of a request that has no choices, and writes its answer, streamed or whole."""

from __future__ import annotations

from typing import Protocol

from baton.gateway.call import Call
from baton.gateway.event_writer import EventWriter
from baton.gateway.generation import Generator
from baton.gateway.http_response import HttpResponse
from baton.gateway.keep_alive import KeepAlive
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
    response: HttpResponse, generator: Generator, call: Call, prompt: PreparedPrompt, form: SingleFormat
) -> None:
    def take(delta: Delta) -> None:
        form.delta(delta)

    result = await generator.generate(prompt, call, take)
    response.send(200, form.whole(result))
