"""Writes a choice of an answer as server-sent events, no faster than its client reads."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import TracebackType
from typing import Protocol

from baton.gateway.generation.requests import Delta
from baton.gateway.http.response import ClientGoneError, HttpResponse
from baton.v1.generation_pb2 import TokenLogprob

DONE = b"data: [DONE]\n\n"
"""Ends a stream of OpenAI's completions that was not broken off."""


class EventFormat(Protocol):
    """Renders the output of choices as server-sent events of an API."""

    def start(self, index: int) -> bytes:
        """Return the events before the first output of a choice; may be empty."""

    def delta(self, index: int, delta: Delta) -> bytes:
        """Return the events for new output of a choice; may be empty."""


class EventWriter:
    """Renders and writes each delta of a choice; while the client does not keep up, holds them and writes them as one.

    Use: inside `with`, which a generation's failure leaves; afterwards nothing is written. Invariant: what is held is
    part of the generation's own output, which its token limit bounds.
    """

    def __init__(self, response: HttpResponse, form: EventFormat, index: int) -> None:
        self._response = response
        self._form = form
        self._index = index
        self._render: Callable[[Delta], bytes] = self._render_first
        self._is_opened = False
        self._held: _HeldOutput | None = None

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

    def opening(self) -> bytes:
        """Return the events before the first output, once: empty if they were written."""
        if self._is_opened:
            return b""
        self._is_opened = True
        self._render = partial(self._form.delta, self._index)
        return self._form.start(self._index)

    def _render_first(self, delta: Delta) -> bytes:
        return self.opening() + self._form.delta(self._index, delta)

    def _hold(self) -> None:
        self._held = _HeldOutput()
        self._response.when_writable(self._release)

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
