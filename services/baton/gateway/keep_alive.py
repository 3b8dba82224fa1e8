"""Comments in a stream of server-sent events that has nothing to say, so that nobody on the way gives it up."""

from __future__ import annotations

import asyncio
from types import TracebackType

from baton.gateway.http_response import HttpResponse

COMMENT = b": keep-alive\n\n"
"""Ignored by every reader of server-sent events."""


class KeepAlive:
    """Writes a comment after each idle time of a stream, before its first event too, inside `with`.

    One timer per stream, which looks twice per idle time whether something was written: a write costs nothing.
    """

    def __init__(self, response: HttpResponse, idle_seconds: float) -> None:
        """Make it.

        Args:
            response: A stream that was started.
            idle_seconds: Time without a byte after which a comment comes, within half of it; 0: no comments.
        """
        self._response = response
        self._idle_seconds = idle_seconds
        self._num_idle_looks = 0
        self._num_writes = response.num_writes
        self._timer: asyncio.TimerHandle | None = None

    def __enter__(self) -> KeepAlive:
        if self._idle_seconds:
            self._schedule()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _schedule(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(self._idle_seconds / 2, self._look)

    def _look(self) -> None:
        is_idle = self._response.num_writes == self._num_writes
        self._num_idle_looks = self._num_idle_looks + 1 if is_idle else 0
        if self._num_idle_looks >= 2 and self._response.is_writable:
            self._response.write(COMMENT)
            self._num_idle_looks = 0
        self._num_writes = self._response.num_writes
        self._schedule()
