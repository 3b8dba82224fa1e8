"""A call as the side that serves it sees it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping

from baton.h2.connection import Connection
from baton.h2.headers import RESPONSE_HEADERS, trailers_of
from baton.h2.sockets import Buffer
from baton.h2.status import Status
from baton.h2.windows import StreamEndedError


class ServerCall:
    """One call with one request and any number of responses; used by the thread that serves it.

    Args:
        connection: Where its stream is.
        stream_id: The stream.
        path: "/package.Service/Method".
        metadata: What the caller sent beyond the protocol's headers.
        request: The request message.
        timeout_seconds: Time that the caller gives; None: no limit.
    """

    def __init__(
        self,
        connection: Connection,
        stream_id: int,
        path: str,
        metadata: Mapping[str, str | bytes],
        request: bytes,
        timeout_seconds: float | None,
    ) -> None:
        self.path = path
        self.metadata = metadata
        self.request = request
        self.deadline = None if timeout_seconds is None else time.monotonic() + timeout_seconds
        """On the monotonic clock; None: no limit. Whoever serves the call keeps it where it waits."""
        self._connection = connection
        self._stream_id = stream_id
        self._has_begun = False
        self._lock = threading.Lock()
        self._is_over = False
        self._on_cancelled: Callable[[], None] = lambda: None

    @property
    def is_over(self) -> bool:
        """Return whether nobody waits for this call any more."""
        return self._is_over

    def remaining_seconds(self) -> float | None:
        """Return the time until the deadline, 0 or more; None: no limit."""
        return None if self.deadline is None else max(0.0, self.deadline - time.monotonic())

    def watch(self, on_cancelled: Callable[[], None]) -> None:
        """Have a function called, once, from another thread, when the caller cancels or is lost; at once if it has."""
        with self._lock:
            self._on_cancelled = on_cancelled
            is_over = self._is_over
        if is_over:
            on_cancelled()

    def cancelled(self) -> None:
        """Take note that nobody waits for this call any more."""
        with self._lock:
            was_over, self._is_over = self._is_over, True
            on_cancelled = self._on_cancelled
        self._connection.windows.close(self._stream_id)
        if not was_over:
            on_cancelled()

    def send(self, *parts: Buffer) -> None:
        """Send a response, given as consecutive buffers; returns when the kernel has it.

        Raises:
            StreamEndedError: If the caller has cancelled or is lost.
            TimeoutError: At the deadline.
        """
        try:
            self._begin()
            self._connection.send_message(self._stream_id, parts, self.deadline)
        except TimeoutError:
            if self.deadline is not None and time.monotonic() >= self.deadline:
                raise
            self._connection.shut_down()  # it was the peer's socket: part of a frame may be missing
            raise StreamEndedError("the peer takes nothing") from None
        except OSError as error:
            self._connection.shut_down()
            raise StreamEndedError(f"the connection is lost: {error}") from error

    def end(self, status: Status) -> None:
        """End the call, unless it is over."""
        with self._lock:
            was_over, self._is_over = self._is_over, True
        if was_over:
            return
        headers = trailers_of(status)
        try:
            self._connection.writer.send_headers(
                self._stream_id, headers if self._has_begun else [*RESPONSE_HEADERS, *headers], is_last=True
            )
        except OSError:
            self._connection.shut_down()
        self._connection.windows.close(self._stream_id)

    def _begin(self) -> None:
        if self._is_over:
            raise StreamEndedError("the call is over")
        if not self._has_begun:
            self._has_begun = True
            self._connection.writer.send_headers(self._stream_id, RESPONSE_HEADERS, is_last=False)
