"""The calling side on an event loop: connections and calls without a thread.

Beside gRPC's own client, whose thread wakes the event loop for everything that happens to a call, a message costs one
turn of the loop. The threads of `client` are for streams that would keep an event loop busy.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections import deque
from typing import cast

from baton.grpc_sockets.client import ClientCalls
from baton.grpc_sockets.connection import PING
from baton.grpc_sockets.flow_control import PeerWindows, ReceiveWindow
from baton.grpc_sockets.frame_io import PREFIX_BYTES, message_bytes, message_prefix
from baton.grpc_sockets.frames import (
    DEFAULT_FRAME_BYTES,
    END_HEADERS,
    END_STREAM,
    PREFACE,
    ErrorCode,
    Frame,
    FrameParser,
    FrameType,
    ProtocolError,
    Setting,
    goaway_frame,
    pack_header,
    ping_frame,
)
from baton.grpc_sockets.headers import SILENT, CallError, Code, Status
from baton.grpc_sockets.limits import Limits, Timing

log = logging.getLogger(__name__)
_LOOKS = 4  # at a silent connection, until it is asked for a sign of life
CANCELLED_HERE = Status(Code.CANCELLED, "cancelled by this side")
"""How a call ends that this side has cancelled: this very object."""


class LoopCall:
    """A call that runs. Belongs to its connection's event loop; `receive` has one caller at a time.

    Invariant: once `status` is set nothing more arrives, and nothing more is sent.
    """

    def __init__(self, connection: LoopConnection, stream_id: int) -> None:
        self._connection, self.stream_id = connection, stream_id
        limits = connection.limits
        self.window = ReceiveWindow(limits.stream_window_bytes, limits.num_held_bytes)
        """What the peer may send."""
        self.waiting: deque[tuple[memoryview, bool]] = deque()
        """What the windows have not let through yet, each with whether it is the last; taken by the connection."""
        self.status: Status | None = None
        """How it ended; None: it runs."""
        self.has_response = False
        """Whether the response's headers have come."""
        self._max_bytes = limits.message_bytes
        self._received: deque[bytes] = deque()
        self._partial = bytearray()
        self._waiter: asyncio.Future[None] | None = None

    async def send(self, message: bytes, *, is_last: bool = False) -> None:
        """Send a message; returns once it is on its way. Raises CallError if the call has ended."""
        if self.status is not None:
            raise CallError(*self.status)
        self.waiting.append((memoryview(message_prefix(len(message)) + message), is_last))
        await self._connection.flush(self)

    async def sent(self) -> None:
        """Wait until all that was to be sent is on its way, or the call has ended."""
        await self._connection.flush(self)

    async def receive(self) -> bytes | None:
        """Wait for the next message; None: the call has ended well. Raises CallError, how it ended otherwise."""
        while not self._received:
            if self.status is not None:
                _checked(self.status)
                return None
            await self._wait()
        message = self._received.popleft()
        self._connection.release(self, len(message))
        return message

    async def only(self) -> bytes:
        """Wait for the end of a call with one response; return that. Raises CallError, how it ended otherwise."""
        while self.status is None:
            await self._wait()
        _checked(self.status)
        if len(self._received) != 1:
            raise CallError(Code.INTERNAL, f"expected one response, got {len(self._received)}")
        return self._received.popleft()

    def cancel(self) -> None:
        """End the call, if it runs."""
        if self.status is None:
            self._connection.end(self, CANCELLED_HERE, ErrorCode.CANCEL)

    def take(self, payload: bytes) -> None:
        """Take the payload of a DATA frame; raise CallError if a message in it is compressed or too large."""
        data = self._partial
        data += payload
        begin = 0
        while len(data) - begin >= PREFIX_BYTES:
            num_bytes = message_bytes(data, begin, self._max_bytes)
            end = begin + PREFIX_BYTES + num_bytes
            if end > len(data):
                break
            self.window.hold(num_bytes)
            self._received.append(bytes(data[begin + PREFIX_BYTES : end]))
            begin = end
        if begin:
            del data[:begin]
            self._wake()

    @property
    def is_between_messages(self) -> bool:
        """Return whether no message has begun to arrive."""
        return not self._partial

    def ended(self, status: Status) -> None:
        """Take the end."""
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


class LoopConnection(ClientCalls[LoopCall], asyncio.Protocol):
    """One connection to a server, by `connect`. What cannot be sent waits in its call; others pass it."""

    def __init__(self, limits: Limits, timing: Timing) -> None:
        super().__init__(limits, timing, PeerWindows())
        self._loop = asyncio.get_running_loop()
        self.greeted: asyncio.Future[None] = self._loop.create_future()
        """Done when the peer's first settings have come; failed if the connection ended before."""
        self._parser = FrameParser(limits)
        self._frame_bytes = DEFAULT_FRAME_BYTES  # the largest payload that the peer takes
        self._is_paused = False  # whether the socket is full
        self._progress: asyncio.Future[None] | None = None
        self._heard_seconds, self._num_looks = self._loop.time(), 0  # when the peer was heard, looks since then
        self._timer: asyncio.TimerHandle | None = None

    @property
    def is_lost(self) -> bool:
        """Return whether nothing runs on it, and nothing will."""
        return self._transport.is_closing()

    def call(self, header_block: bytes, request: bytes | None = None) -> LoopCall:
        """Begin a call.

        `header_block`: does without the table: `fixed_block`. `request`: the only one, sent with the headers in one
        write; await the call's `sent` next. None: any number. Raises CallError if the connection takes no call.
        """
        call = self._begin(lambda stream_id: LoopCall(self, stream_id))
        headers = pack_header(len(header_block), FrameType.HEADERS, END_HEADERS, call.stream_id) + header_block
        if request is not None:
            call.waiting.append((memoryview(message_prefix(len(request)) + request), True))
        self.post(headers + self._granted(call))
        if self._timer is None:
            if self._loop.time() - self._heard_seconds >= self.timing.idle_seconds:  # nobody has looked: ask at once
                self._num_looks = max(self._num_looks, _LOOKS - 1)
            self._watch()
        return call

    def retire(self) -> None:
        """Take no further call, and close after the last."""
        self._refuse("the connection is being closed")
        self._close_if_done()

    def shut_down(self, status: Status) -> None:
        """End every call with a status, and the connection."""
        self._refuse(status.message)
        self._end_all(status)
        self._transport.close()

    async def flush(self, call: LoopCall) -> None:
        """Send what waits in a call; return once windows and socket have taken it, or the call has ended."""
        self.post(self._granted(call))
        while call.waiting or (self._is_paused and call.status is None):
            if self._progress is None:
                self._progress = self._loop.create_future()
            await asyncio.shield(self._progress)
            self.post(self._granted(call))

    def release(self, call: LoopCall, num_bytes: int) -> None:
        """Open a call's window by a message that its taker is done with."""
        opened = call.window.release(num_bytes)
        if call.status is None:
            self._opened(call.stream_id, opened)

    def end(self, call: LoopCall, status: Status, reset: ErrorCode | None) -> None:
        """Forget a call that runs, tell it how it ended, and the peer if it does not know."""
        super().end(call, status, reset)
        self._close_if_done()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Greet the peer."""
        self._transport = cast(asyncio.Transport, transport)
        self.post(PREFACE + self._greeting(DEFAULT_FRAME_BYTES, (Setting.ENABLE_PUSH, 0)))

    def data_received(self, data: bytes) -> None:
        """Take frames; an error of the peer's ends the connection."""
        self._heard_seconds, self._num_looks = self._loop.time(), 0
        try:
            for frame in self._parser.feed(data):
                if frame.frame_type == FrameType.DATA:
                    self._take_data(frame)
                else:
                    self._take(frame)
        except ProtocolError as error:
            self._give_up(error.code, str(error))
        except Exception:  # the edge of the connection: a bug here ends it, and no other
            log.exception("h2_connection_failed")
            self._give_up(ErrorCode.INTERNAL_ERROR, "internal error")

    def pause_writing(self) -> None:
        """Note that the socket is full."""
        self._is_paused = True

    def resume_writing(self) -> None:
        """Note that the socket takes more."""
        self._is_paused = False
        self._resume()

    def connection_lost(self, exc: Exception | None) -> None:
        """End what runs."""
        self._refuse(f"the connection was lost: {exc}" if exc else "the peer closed the connection")
        if self._timer is not None:
            self._timer.cancel()
        if not self.greeted.done():
            self.greeted.set_exception(ConnectionError(self._refusal))
        self._end_all(Status(Code.UNAVAILABLE, self._refusal))

    def post(self, frames: bytes) -> None:
        """Write frames that no window counts, or that windows have granted."""
        if frames and not self._transport.is_closing():
            self._transport.write(frames)

    def _granted(self, call: LoopCall) -> bytes:
        """Return the frames that may go out of what waits in a call."""
        frames: list[bytes | memoryview] = []
        while call.waiting and not self._is_paused:
            data, is_last = call.waiting[0]
            num_bytes = self._peer_windows.grant(call.stream_id, min(len(data), self._frame_bytes))
            if not num_bytes:
                break
            is_whole = num_bytes == len(data)
            flags = END_STREAM if is_whole and is_last else 0
            frames += (pack_header(num_bytes, FrameType.DATA, flags, call.stream_id), data[:num_bytes])
            if is_whole:
                call.waiting.popleft()
                if is_last:
                    self._peer_windows.close(call.stream_id)
            else:
                call.waiting[0] = data[num_bytes:], is_last
        return b"".join(frames)

    def _resume(self) -> None:
        """Let those go on that wait for a window or the socket."""
        progress, self._progress = self._progress, None
        if progress is not None:
            progress.set_result(None)

    def _take(self, frame: Frame) -> None:
        super()._take(frame)
        if frame.frame_type in (FrameType.WINDOW_UPDATE, FrameType.SETTINGS):
            self._resume()

    def _take_data(self, frame: Frame) -> None:
        self._opened(0, self._window.received(frame.num_window_bytes))
        call = self._known(frame.stream_id)
        if call is None:
            return
        opened = call.window.received(frame.num_window_bytes)
        try:
            if not call.has_response:
                raise CallError(Code.INTERNAL, "a message came before the headers")
            call.take(frame.payload)
        except CallError as error:
            self.end(call, error.status, ErrorCode.CANCEL)
            return
        if frame.is_last:
            self.end(call, Status(Code.INTERNAL, "the stream ended without trailers"), None)
        else:
            self._opened(call.stream_id, opened)

    def _forget(self, stream_id: int) -> bool:
        has_run = super()._forget(stream_id)
        self._resume()
        return has_run

    def _reset_after(self, call: LoopCall) -> ErrorCode | None:
        """Return NO_ERROR if the peer has answered before it has heard all: then this side ends too."""
        return ErrorCode.NO_ERROR if call.stream_id in self._peer_windows else None

    def _on_setting(self, key: int, value: int) -> None:
        if key == Setting.MAX_FRAME_SIZE:
            self._frame_bytes = min(value, self.limits.frame_bytes)
        super()._on_setting(key, value)

    def _on_greeting(self) -> None:
        if not self.greeted.done():
            self.greeted.set_result(None)

    def _on_goaway(self, last_stream_id: int, code: int) -> None:
        super()._on_goaway(last_stream_id, code)
        self._close_if_done()

    def _close_if_done(self) -> None:
        if self._refusal and not self._calls:
            self._transport.close()

    def _watch(self) -> None:
        """Ask a silent peer for a sign of life while calls are open; give it up when it gives none.

        Calls shorter than the wait for the sign must not end it: else nobody finds out that the peer is dead. It is
        counted in looks: a process that was itself stopped, or starved, has not waited.
        """
        self._timer = None
        if not self._calls and self._num_looks < _LOOKS:
            return
        pause_seconds = self.timing.idle_seconds / _LOOKS
        self._num_looks += 1
        if (self._num_looks - _LOOKS) * pause_seconds >= self.timing.ping_seconds:
            self._give_up(ErrorCode.NO_ERROR, f"{SILENT} for {self._loop.time() - self._heard_seconds:.1f} seconds")
            return
        if self._num_looks == _LOOKS:
            self.post(ping_frame(PING, is_ack=False))
        self._timer = self._loop.call_later(pause_seconds, self._watch)

    def _give_up(self, code: ErrorCode, message: str) -> None:
        self.post(goaway_frame(0, code, message))
        self.shut_down(Status(Code.UNAVAILABLE, message))
        self._transport.abort()


async def connect(
    host: str, port: int, *, limits: Limits, timing: Timing, tls: ssl.SSLContext | None = None, server_name: str = ""
) -> LoopConnection:
    """Return a connection whose peer has greeted; raise OSError if there is none within `timing.connect_seconds`."""
    if tls is not None:
        tls.set_alpn_protocols(["h2"])
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(timing.connect_seconds):
        transport, connection = await loop.create_connection(
            lambda: LoopConnection(limits, timing), host, port, ssl=tls, server_hostname=server_name if tls else None
        )
        try:
            await connection.greeted
        except BaseException:
            connection.greeted.cancel()
            transport.abort()
            raise
    return connection
