"""One call on a connection that an event loop owns: messages in both directions, and how it ends."""

from __future__ import annotations

import asyncio
import struct
from collections import deque
from typing import Protocol

from baton.h2.messages import PREFIX_BYTES, message_prefix
from baton.h2.protocol import ErrorCode
from baton.h2.receive_window import ReceiveWindow
from baton.h2.status import CallError, Code, Status

CANCELLED_HERE = Status(Code.CANCELLED, "cancelled by this side")
"""How a call ends that this side has cancelled: this very object."""


class CallOwner(Protocol):
    """The connection, as a call sees it."""

    async def flush(self, call: LoopCall) -> None:
        """Send what waits in the call; return once the peer's windows and the socket have taken it."""

    def open_window(self, call: LoopCall, num_bytes: int) -> None:
        """Let the peer send more."""

    def end(self, call: LoopCall, status: Status, reset: ErrorCode | None) -> None:
        """Forget a call, tell it how it ended, and the peer if it does not know."""


class LoopCall:
    """A call that runs. Belongs to its connection's event loop; `receive` has one caller at a time.

    Invariant: once `status` is set nothing more arrives, and nothing more is sent.
    """

    def __init__(self, owner: CallOwner, stream_id: int, window: ReceiveWindow, max_bytes: int) -> None:
        self.stream_id = stream_id
        self.window = window
        """What the peer may send."""
        self.send_window = 0
        """What this side may send; kept by the connection."""
        self.waiting: deque[tuple[memoryview, bool]] = deque()
        """What the windows have not let through yet, each with whether it is the last; taken by the connection."""
        self.status: Status | None = None
        """How it ended; None: it runs."""
        self.has_response = False
        """Whether the response's headers have come."""
        self._owner = owner
        self._max_bytes = max_bytes
        self._received: deque[bytes] = deque()
        self._partial = bytearray()
        self._waiter: asyncio.Future[None] | None = None

    async def send(self, message: bytes, *, is_last: bool = False) -> None:
        """Send a message; returns once it is on its way.

        Raises:
            CallError: If the call has ended.
        """
        if self.status is not None:
            raise CallError(*self.status)
        self.waiting.append((memoryview(message_prefix(len(message)) + message), is_last))
        await self._owner.flush(self)

    async def sent(self) -> None:
        """Wait until all that was to be sent is on its way, or the call has ended."""
        await self._owner.flush(self)

    async def receive(self) -> bytes | None:
        """Wait for the next message; None: the call has ended well.

        Raises:
            CallError: How it ended otherwise.
        """
        while not self._received:
            if self.status is not None:
                _checked(self.status)
                return None
            await self._wait()
        message = self._received.popleft()
        self._owner.open_window(self, self.window.release(len(message)))
        return message

    async def only(self) -> bytes:
        """Wait for the end of a call with one response; return that.

        Raises:
            CallError: How it ended otherwise.
        """
        while self.status is None:
            await self._wait()
        _checked(self.status)
        if len(self._received) != 1:
            raise CallError(Code.INTERNAL, f"expected one response, got {len(self._received)}")
        return self._received.popleft()

    def cancel(self) -> None:
        """End the call, if it runs."""
        if self.status is None:
            self._owner.end(self, CANCELLED_HERE, ErrorCode.CANCEL)

    # Called by the connection.

    def take(self, payload: bytes) -> None:
        """Take the payload of a DATA frame.

        Raises:
            CallError: If a message in it is compressed or too large.
        """
        data = self._partial
        data += payload
        begin = 0
        while len(data) - begin >= PREFIX_BYTES:
            is_compressed, num_bytes = struct.unpack_from(">BI", data, begin)
            if is_compressed:
                raise CallError(Code.UNIMPLEMENTED, "compressed messages are not supported")
            if num_bytes > self._max_bytes:
                raise CallError(
                    Code.RESOURCE_EXHAUSTED, f"a message of {num_bytes} bytes; {self._max_bytes} are the most"
                )
            end = begin + PREFIX_BYTES + num_bytes
            if end > len(data):
                break
            self.window.hold(num_bytes)
            self._received.append(bytes(data[begin + PREFIX_BYTES : end]))
            begin = end
        if begin:
            del data[:begin]
            self._wake()

    def ended(self, status: Status) -> None:
        """Take the end."""
        if status.code is Code.OK and self._partial:
            status = Status(Code.INTERNAL, "the call ended inside a message")
        self.status = status
        self.waiting.clear()
        self._wake()

    async def _wait(self) -> None:
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


def _checked(status: Status) -> None:
    if status.code is not Code.OK:
        raise CallError(*status)
