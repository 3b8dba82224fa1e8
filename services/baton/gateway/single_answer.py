"""Runs the one generation of a request that has no choices, and writes its answer, streamed or whole."""

from __future__ import annotations

from contextlib import aclosing
from typing import Protocol

from baton.gateway.call import Call
from baton.gateway.generation import Generator
from baton.gateway.http_response import HttpResponse
from baton.gateway.requests import Delta, GenerationResult, PreparedPrompt


class SingleFormat(Protocol):
    """Writes one answer: server-sent events for a stream, or a whole body."""

    def start(self) -> bytes:
        """Return the events before the first text."""

    def delta(self, text: str) -> bytes:
        """Return the event for new text, at least one character."""

    def finish(self, result: GenerationResult) -> bytes:
        """Return the events that end the stream."""

    def whole(self, text: str, result: GenerationResult) -> bytes:
        """Return the body of an answer that is not streamed."""


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
    async with aclosing(generator.generate(prompt, call)) as elements:
        async for element in elements:
            start = b"" if response.is_begun else form.start()
            if isinstance(element, GenerationResult):
                response.end(start + form.finish(element))
                return
            response.write(start + (form.delta(element.text) if element.text else b""))
            if not response.is_writable:
                await response.wait_writable()


async def _send_whole(
    response: HttpResponse, generator: Generator, call: Call, prompt: PreparedPrompt, form: SingleFormat
) -> None:
    texts: list[str] = []
    async with aclosing(generator.generate(prompt, call)) as elements:
        async for element in elements:
            if isinstance(element, Delta):
                texts.append(element.text)
            else:
                response.send(200, form.whole("".join(texts), element))
