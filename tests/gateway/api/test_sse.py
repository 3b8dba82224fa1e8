"""Output for a client that does not keep up."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence

import pytest

from baton.gateway.api.answer import EventWriter, FinishedChoice
from baton.gateway.generation.requests import Delta, GenerationResult
from baton.gateway.http.messages import HttpRequest
from baton.gateway.http.response import ClientGoneError, HttpResponse


class SlowClient:
    """A connection whose buffer is full after each write until `catch_up`."""

    def __init__(self) -> None:
        self.data = b""
        self.is_writable = True
        self._waiting: list[Callable[[], None]] = []

    def write(self, data: bytes) -> bool:
        """Take bytes; the buffer is full."""
        self.data += data
        self.is_writable = False
        return False

    async def wait_writable(self) -> None:
        """Let the client take them."""
        self.catch_up()

    def when_writable(self, function: Callable[[], None]) -> None:
        """Call once it has."""
        self._waiting.append(function)

    def catch_up(self) -> None:
        """Take everything."""
        self.is_writable = True
        waiting, self._waiting = self._waiting, []
        for function in waiting:
            function()


class Angles:
    """Writes what comes between angles, after a bracket that opens it."""

    def start(self, index: int) -> bytes:
        """Open."""
        return b"["

    def delta(self, index: int, delta: Delta) -> bytes:
        """Write output."""
        return f"<{delta.text}>".encode()

    def finish(self, index: int, result: GenerationResult, results: Sequence[GenerationResult]) -> bytes:
        """Close."""
        return b"]"

    def whole(self, choices: Sequence[FinishedChoice]) -> bytes:
        """Write nothing."""
        return b""


def stream_to(client: SlowClient) -> HttpResponse:
    """Return a stream that has begun; its chunks have no frame."""
    response = HttpResponse(client, HttpRequest(has_chunks=False), is_last=lambda: False)
    response.start_stream()
    response.write(b"head")
    client.catch_up()
    client.data = b""
    return response


def take(writer: EventWriter, *texts: str) -> None:
    """Let output come, a token each."""
    for text in texts:
        writer.take(Delta(text, [1], ()))


def test_what_comes_meanwhile_is_written_as_one() -> None:
    """In order."""
    client = SlowClient()
    with EventWriter(stream_to(client), Angles(), 0) as writer:
        take(writer, "a", "b", "c")
        assert client.data == b"[<a>"
        client.catch_up()
        assert client.data == b"[<a><bc>"
        assert writer.opening() == b""


def after_failure(error: BaseException) -> bytes:
    """Return what a client gets of a generation that fails while a delta is held, and of the error event."""
    client = SlowClient()
    response = stream_to(client)
    with (
        contextlib.suppress(type(error)),
        EventWriter(response, Angles(), 0) as writer,
    ):
        take(writer, "a", "b")
        raise error
    response.end(b"<error>")
    client.catch_up()
    return client.data


def test_output_that_is_held_when_a_generation_fails_comes_before_the_error() -> None:
    """And nothing after it: the stream has ended, and its connection is being closed."""
    assert after_failure(RuntimeError("node")) == b"[<a><b><error>"


@pytest.mark.parametrize("error", [asyncio.CancelledError(), ClientGoneError("slow")])
def test_a_generation_that_nobody_waits_for_writes_nothing_more(error: BaseException) -> None:
    """Another choice of the same request has failed, and its error ends the stream; or the client has gone."""
    assert after_failure(error) == b"[<a><error>"
