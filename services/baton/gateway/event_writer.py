"""Writes the output of one generation to its client, the moment it comes."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType

from baton.gateway.http_response import ClientGoneError, HttpResponse
from baton.gateway.requests import Delta
from baton.v1.generation_pb2 import TokenLogprob


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
