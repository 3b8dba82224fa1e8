"""The calling side on an event loop: one connection, any number of calls, no thread.

Beside gRPC's own client, whose thread wakes the event loop for everything that happens to a call, a message costs one
turn of the loop. The threads of `baton.grpc_sockets.client` are for streams that would keep an event loop busy.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Mapping
from typing import cast

from baton.grpc_sockets.flow_control import ReceiveWindow
from baton.grpc_sockets.frames import (
    ACK,
    DEFAULT_FRAME_BYTES,
    LARGEST_STREAM_ID,
    PREFACE,
    SETTINGS_ACK,
    ErrorCode,
    Frame,
    FrameParser,
    FrameType,
    ProtocolError,
    Setting,
    goaway_frame,
    number_of,
    parse_settings,
    ping_frame,
    reset_frame,
    settings_frame,
    window_update_frame,
)
from baton.grpc_sockets.headers import HeaderDecoder, check_response, reset_status, status_of
from baton.grpc_sockets.limits import Limits, Timing
from baton.grpc_sockets.loop_call import FrameSender, LoopCall
from baton.grpc_sockets.status import CallError, Code, Status

log = logging.getLogger(__name__)

_PING = b"baton-lp"


class LoopConnection(asyncio.Protocol):
    """One connection to a server, made by `connect`.

    Invariant: a call is in `_calls` from `call` until it has ended; every call has ended once the connection has.
    """

    def __init__(self, limits: Limits, timing: Timing) -> None:
        self.greeted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done when the peer's first settings have come; failed if the connection ended before."""
        self._limits = limits
        self._timing = timing
        self._loop = asyncio.get_running_loop()
        self._parser = FrameParser(limits)
        self._decoder = HeaderDecoder(limits.header_bytes)
        self._window = ReceiveWindow(limits.connection_window_bytes, limits.connection_window_bytes)
        self._calls: dict[int, LoopCall] = {}
        self._next_id = 1
        self._most_calls = limits.num_streams
        self._refusal = ""
        self._heard_seconds = self._loop.time()
        self._pinged_seconds: float | None = None
        self._timer: asyncio.TimerHandle | None = None

    @property
    def is_open(self) -> bool:
        """Return whether calls can be made; a connection that has used up its stream numbers takes no more."""
        return not self._refusal and self._next_id <= LARGEST_STREAM_ID

    @property
    def is_lost(self) -> bool:
        """Return whether nothing runs on it, and nothing will."""
        return self._sender.transport.is_closing()

    @property
    def is_full(self) -> bool:
        """Return whether the peer takes no further call before another has ended."""
        return len(self._calls) >= self._most_calls

    def call(self, header_block: bytes, request: bytes | None = None) -> LoopCall:
        """Begin a call.

        Args:
            header_block: Does without the table: `fixed_block`.
            request: The only one, which goes out with the headers; await the call's `sent` next. None: any number.

        Raises:
            CallError: If the connection takes no call.
        """
        if not self.is_open:
            raise CallError(Code.UNAVAILABLE, self._refusal or "the connection has used up its stream numbers")
        if self.is_full:
            raise CallError(Code.RESOURCE_EXHAUSTED, f"{self._most_calls} calls run on the connection already")
        limits = self._limits
        window = ReceiveWindow(limits.stream_window_bytes, limits.num_held_bytes)
        call = self._calls[self._next_id] = LoopCall(self, self._next_id, window, limits.message_bytes)
        self._next_id += 2
        self._sender.begin(call, header_block, request)
        if self._timer is None:
            self._watch()
        return call

    def retire(self) -> None:
        """Take no further call, and close after the last."""
        self._refusal = self._refusal or "the connection is being closed"
        self._close_if_done()

    def shut_down(self, status: Status) -> None:
        """End every call with a status, and the connection."""
        self._refusal = self._refusal or status.message
        for call in list(self._calls.values()):
            self.end(call, status, None)
        self._sender.transport.close()

    # Called by calls.

    async def flush(self, call: LoopCall) -> None:
        """Send what waits in a call; return once the peer's windows and the socket have taken it."""
        await self._sender.flush(call)

    def open_window(self, call: LoopCall, num_bytes: int) -> None:
        """Let the peer send more on a call; 0 bytes: not yet."""
        if num_bytes and call.status is None:
            self._sender.control(window_update_frame(call.stream_id, num_bytes))

    def end(self, call: LoopCall, status: Status, reset: ErrorCode | None) -> None:
        """Forget a call, tell it how it ended, and the peer if it does not know."""
        if self._calls.pop(call.stream_id, None) is None:
            return
        call.ended(status)
        self._sender.forget(call)
        if reset is not None:
            self._sender.control(reset_frame(call.stream_id, reset))
        self._close_if_done()

    # Called by the event loop.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Greet the peer."""
        self._sender = FrameSender(cast(asyncio.Transport, transport))
        settings = {
            Setting.ENABLE_PUSH: 0,
            Setting.INITIAL_WINDOW_SIZE: self._limits.stream_window_bytes,
            Setting.MAX_FRAME_SIZE: DEFAULT_FRAME_BYTES,
            Setting.MAX_HEADER_LIST_SIZE: self._limits.header_bytes,
        }
        more = self._limits.connection_window_bytes - self._sender.connection_window
        self._sender.control(PREFACE + settings_frame(settings) + window_update_frame(0, more))

    def data_received(self, data: bytes) -> None:
        """Take frames; an error of the peer's ends the connection."""
        self._heard_seconds, self._pinged_seconds = self._loop.time(), None
        try:
            for frame in self._parser.feed(data):
                self._take(frame)
        except ProtocolError as error:
            self._give_up(error.code, str(error))
        except Exception:  # the edge of the connection: a bug here ends it, and no other
            log.exception("h2_connection_failed")
            self._give_up(ErrorCode.INTERNAL_ERROR, "internal error")

    def pause_writing(self) -> None:
        """Note that the socket is full."""
        self._sender.is_paused = True

    def resume_writing(self) -> None:
        """Note that the socket takes more."""
        self._sender.is_paused = False
        self._sender.resume()

    def connection_lost(self, exc: Exception | None) -> None:
        """End what runs."""
        text = f"the connection was lost: {exc}" if exc else "the peer closed the connection"
        self._refusal = self._refusal or text
        if self._timer is not None:
            self._timer.cancel()
        if not self.greeted.done():
            self.greeted.set_exception(ConnectionError(self._refusal))
        for call in list(self._calls.values()):
            self.end(call, Status(Code.UNAVAILABLE, self._refusal), None)

    def _take(self, frame: Frame) -> None:
        frame_type, flags, stream_id, payload, _ = frame
        if frame_type == FrameType.DATA:
            self._take_data(frame)
            if self._parser.ends_stream(flags):
                self._end_of(stream_id, Status(Code.INTERNAL, "the call ended without trailers"))
        elif frame_type == FrameType.HEADERS:
            self._take_headers(stream_id, self._decoder.decode(payload), is_last=self._parser.ends_stream(flags))
        elif frame_type == FrameType.WINDOW_UPDATE:
            self._sender.add(stream_id, number_of(payload, FrameType.WINDOW_UPDATE) & 0x7FFFFFFF)
        elif frame_type == FrameType.SETTINGS:
            self._take_settings(payload, is_ack=bool(flags & ACK))
        elif frame_type == FrameType.PING:
            if not flags & ACK:
                self._sender.control(ping_frame(payload, is_ack=True))
        elif frame_type == FrameType.RST_STREAM:
            self._end_of(stream_id, reset_status(number_of(payload, FrameType.RST_STREAM)))
        elif frame_type == FrameType.GOAWAY:
            self._take_goaway(int.from_bytes(payload[:4], "big") & 0x7FFFFFFF)

    def _take_data(self, frame: Frame) -> None:
        if opened := self._window.received(frame.num_window_bytes):
            self._sender.control(window_update_frame(0, opened))
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
        self.open_window(call, opened)

    def _take_headers(self, stream_id: int, headers: Mapping[str, str], *, is_last: bool) -> None:
        call = self._known(stream_id)
        if call is None:
            return
        if not call.has_response:
            if headers.get(":status", "").startswith("1") and not is_last:
                return  # an interim response
            try:
                check_response(headers)
            except CallError as error:
                self.end(call, error.status, None if is_last else ErrorCode.CANCEL)
                return
            call.has_response = True
        if is_last:
            is_sending = self._sender.is_sending(call)  # a peer may answer before it has heard all: this side ends too
            self.end(call, status_of(headers), ErrorCode.NO_ERROR if is_sending else None)

    def _take_settings(self, payload: bytes, *, is_ack: bool) -> None:
        if is_ack:
            return
        for key, value in parse_settings(payload):
            if key == Setting.MAX_CONCURRENT_STREAMS:
                self._most_calls = min(value, self._limits.num_streams)
            elif key == Setting.INITIAL_WINDOW_SIZE:
                self._sender.set_initial(value)
            elif key == Setting.MAX_FRAME_SIZE:
                self._sender.frame_bytes = min(value, self._limits.frame_bytes)
        self._sender.control(SETTINGS_ACK)
        if not self.greeted.done():
            self.greeted.set_result(None)

    def _take_goaway(self, last_stream_id: int) -> None:
        self._refusal = self._refusal or "the peer is shutting down"
        for call in [call for call in self._calls.values() if call.stream_id > last_stream_id]:
            self.end(call, Status(Code.UNAVAILABLE, self._refusal), None)
        self._close_if_done()

    def _close_if_done(self) -> None:
        if self._refusal and not self._calls:
            self._sender.transport.close()

    def _end_of(self, stream_id: int, status: Status) -> None:
        call = self._known(stream_id)
        if call is not None:
            self.end(call, status, None)

    def _known(self, stream_id: int) -> LoopCall | None:
        """Return a call that runs; None: it has ended here already."""
        if stream_id % 2 == 0 or stream_id >= self._next_id:
            raise ProtocolError(ErrorCode.PROTOCOL_ERROR, f"stream {stream_id} was not opened")
        return self._calls.get(stream_id)

    def _watch(self) -> None:
        """Ask a silent peer for a sign of life while calls are open; give it up when it gives none.

        Calls shorter than the wait for the sign must not end the wait: else nobody finds out that the peer is dead.
        """
        self._timer = None
        now = self._loop.time()
        if self._pinged_seconds is not None and now - self._pinged_seconds >= self._timing.ping_seconds:
            self._give_up(ErrorCode.NO_ERROR, f"the peer was silent for {now - self._heard_seconds:.1f} seconds")
            return
        if not self._calls and self._pinged_seconds is None:
            return
        if self._pinged_seconds is None and now - self._heard_seconds >= self._timing.idle_seconds:
            self._pinged_seconds = now
            self._sender.control(ping_frame(_PING, is_ack=False))
        self._timer = self._loop.call_later(self._timing.idle_seconds / 4, self._watch)

    def _give_up(self, code: ErrorCode, message: str) -> None:
        self._sender.control(goaway_frame(0, code, message))
        self.shut_down(Status(Code.UNAVAILABLE, message))
        self._sender.transport.abort()


async def connect(
    host: str,
    port: int,
    *,
    limits: Limits,
    timing: Timing,
    tls: ssl.SSLContext | None = None,
    server_name: str = "",
) -> LoopConnection:
    """Return a connection whose peer has greeted.

    Raises:
        OSError: If there is none within `timing.connect_seconds`, or it is no HTTP/2 server.
    """
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
