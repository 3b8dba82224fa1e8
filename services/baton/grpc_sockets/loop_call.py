"""One call on a connection that an event loop owns: messages in both directions, and how it ends.

What an event loop sends on a connection, within the peer's windows.
"""

from __future__ import annotations

import asyncio
import struct
from collections import deque
from typing import Protocol

from baton.grpc_sockets.flow_control import ReceiveWindow
from baton.grpc_sockets.frame_io import PREFIX_BYTES, message_prefix
from baton.grpc_sockets.frames import (
    DEFAULT_FRAME_BYTES,
    DEFAULT_WINDOW_BYTES,
    END_HEADERS,
    END_STREAM,
    LARGEST_WINDOW_BYTES,
    ErrorCode,
    FrameType,
    ProtocolError,
    pack_header,
)
from baton.grpc_sockets.status import CallError, Code, Status

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


class FrameSender:
    """Writes frames. What a window or the socket does not let through waits in its call; other calls pass it.

    Invariant: what is sent and not given back never exceeds the least of the windows.
    """

    def __init__(self, transport: asyncio.Transport) -> None:
        self.transport = transport
        self.connection_window = DEFAULT_WINDOW_BYTES
        """What the peer takes on all streams together."""
        self.frame_bytes = DEFAULT_FRAME_BYTES
        """Largest payload that the peer takes."""
        self.is_paused = False
        """Whether the socket is full."""
        self._initial_window = DEFAULT_WINDOW_BYTES
        self._calls: dict[int, LoopCall] = {}
        self._progress: asyncio.Future[None] | None = None

    def begin(self, call: LoopCall, header_block: bytes, request: bytes | None) -> None:
        """Open a stream, with its only request if there is just one: in the same write."""
        call.send_window = self._initial_window
        self._calls[call.stream_id] = call
        headers = pack_header(len(header_block), FrameType.HEADERS, END_HEADERS, call.stream_id) + header_block
        if request is not None:
            call.waiting.append((memoryview(message_prefix(len(request)) + request), True))
        self.control(headers + self._pumped(call))

    def is_sending(self, call: LoopCall) -> bool:
        """Return whether this side has not ended the stream."""
        return call.stream_id in self._calls

    def forget(self, call: LoopCall) -> None:
        """Send no more on a stream."""
        self._calls.pop(call.stream_id, None)
        self.resume()

    def control(self, frames: bytes) -> None:
        """Write frames that no window counts."""
        if frames and not self.transport.is_closing():
            self.transport.write(frames)

    async def flush(self, call: LoopCall) -> None:
        """Send what waits in a call; return once all is written, or the call has ended."""
        self.control(self._pumped(call))
        while call.waiting or (self.is_paused and call.status is None):
            if self._progress is None:
                self._progress = asyncio.get_running_loop().create_future()
            await asyncio.shield(self._progress)
            self.control(self._pumped(call))

    def resume(self) -> None:
        """Let those go on that wait."""
        progress, self._progress = self._progress, None
        if progress is not None:
            progress.set_result(None)

    def add(self, stream_id: int, num_bytes: int) -> None:
        """Take note of a WINDOW_UPDATE; 0 is the connection.

        Raises:
            ProtocolError: If it is 0 or the window grows too large.
        """
        if num_bytes == 0:
            raise ProtocolError(ErrorCode.PROTOCOL_ERROR, "WINDOW_UPDATE of 0 bytes")
        if stream_id == 0:
            self.connection_window = _checked_window(self.connection_window + num_bytes)
        elif (call := self._calls.get(stream_id)) is not None:
            call.send_window = _checked_window(call.send_window + num_bytes)
        self.resume()

    def set_initial(self, num_bytes: int) -> None:
        """Take note of the peer's SETTINGS_INITIAL_WINDOW_SIZE; open streams change by the difference.

        Raises:
            ProtocolError: If a window grows too large.
        """
        change, self._initial_window = _checked_window(num_bytes) - self._initial_window, num_bytes
        for call in self._calls.values():
            call.send_window = _checked_window(call.send_window + change)
        self.resume()

    def _pumped(self, call: LoopCall) -> bytes:
        """Return the frames that may go out of what waits in a call."""
        frames: list[bytes | memoryview] = []
        while call.waiting and not self.is_paused:
            data, is_last = call.waiting[0]
            num_bytes = min(len(data), self.connection_window, call.send_window, self.frame_bytes)
            if num_bytes <= 0:
                break
            self.connection_window -= num_bytes
            call.send_window -= num_bytes
            is_whole = num_bytes == len(data)
            flags = END_STREAM if is_whole and is_last else 0
            frames += (pack_header(num_bytes, FrameType.DATA, flags, call.stream_id), data[:num_bytes])
            if is_whole:
                call.waiting.popleft()
                if is_last:
                    self._calls.pop(call.stream_id, None)
            else:
                call.waiting[0] = data[num_bytes:], is_last
        return b"".join(frames)


def _checked_window(num_bytes: int) -> int:
    if num_bytes > LARGEST_WINDOW_BYTES:
        raise ProtocolError(ErrorCode.FLOW_CONTROL_ERROR, f"a window of {num_bytes} bytes")
    return num_bytes
