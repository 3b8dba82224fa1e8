"""What an event loop sends on a connection, within the peer's windows."""

from __future__ import annotations

import asyncio

from baton.h2.loop_call import LoopCall
from baton.h2.messages import message_prefix
from baton.h2.protocol import (
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
            self.connection_window = _checked(self.connection_window + num_bytes)
        elif (call := self._calls.get(stream_id)) is not None:
            call.send_window = _checked(call.send_window + num_bytes)
        self.resume()

    def set_initial(self, num_bytes: int) -> None:
        """Take note of the peer's SETTINGS_INITIAL_WINDOW_SIZE; open streams change by the difference.

        Raises:
            ProtocolError: If a window grows too large.
        """
        change, self._initial_window = _checked(num_bytes) - self._initial_window, num_bytes
        for call in self._calls.values():
            call.send_window = _checked(call.send_window + change)
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


def _checked(num_bytes: int) -> int:
    if num_bytes > LARGEST_WINDOW_BYTES:
        raise ProtocolError(ErrorCode.FLOW_CONTROL_ERROR, f"a window of {num_bytes} bytes")
    return num_bytes
