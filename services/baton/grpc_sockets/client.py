"""The calling side: what any client does with its calls; and connections whose messages land in given memory."""

from __future__ import annotations

import math
import socket
import ssl
import threading
import time
from abc import abstractmethod
from collections.abc import Callable, Mapping
from functools import partial
from typing import Generic, Protocol, TypeVar

from baton.grpc_sockets.connection import SILENCE_SECONDS, Connection, SilentPeerError, ThreadConnection
from baton.grpc_sockets.flow_control import PeerWindows, ReceiveTurns, ReceiveWindow, StreamEndedError
from baton.grpc_sockets.frame_io import MessageAssembler
from baton.grpc_sockets.frames import LARGEST_STREAM_ID, PREFACE, ErrorCode, ProtocolError, Setting, reset_frame
from baton.grpc_sockets.headers import (
    CallError,
    Code,
    Metadata,
    Status,
    check_response,
    request_headers,
    reset_status,
    status_of,
)
from baton.grpc_sockets.limits import Limits, Timing
from baton.grpc_sockets.sockets import ByteStream, TlsStream, prepare


class RunningCall(Protocol):
    """A call, as its connection sees it."""

    stream_id: int
    has_response: bool

    @property
    def is_between_messages(self) -> bool:
        """Return whether no message has begun to arrive."""

    def ended(self, status: Status) -> None:
        """Take the end; nothing follows."""


C = TypeVar("C", bound=RunningCall)

MOST_ROUND_TRIP_SECONDS = 0.02
"""That a connection is taken to need: what its making takes longer is a name's look-up, or a packet that was lost."""


class ClientCalls(Connection, Generic[C]):
    """The calls of a client by stream, each in `_calls` from its beginning to its end; the connection's ends all."""

    def __init__(self, limits: Limits, timing: Timing, windows: PeerWindows) -> None:
        super().__init__(limits, timing, windows)
        self._calls: dict[int, C] = {}
        self._next_id = 1
        self._most_calls = limits.num_streams
        self._refusal = ""

    @property
    def is_open(self) -> bool:
        """Return whether calls can be made; a connection that has used up its stream numbers takes no more."""
        return not self._refusal and self._next_id <= LARGEST_STREAM_ID

    @property
    def is_full(self) -> bool:
        """Return whether the peer takes no further call before another has ended."""
        return len(self._calls) >= self._most_calls

    def end(self, call: C, status: Status, reset: ErrorCode | None) -> None:
        """Forget a call that runs, tell it how it ended, and the peer if it does not know."""
        if self._forget(call.stream_id):
            call.ended(status)
            if reset is not None:
                self.post(reset_frame(call.stream_id, reset))

    def _begin(self, make: Callable[[int], C]) -> C:
        """Return a call on a stream of its own; CallError if the connection takes none."""
        if not self.is_open:
            raise CallError(Code.UNAVAILABLE, self._refusal or "the connection has used up its stream numbers")
        if self.is_full:
            raise CallError(Code.RESOURCE_EXHAUSTED, f"{self._most_calls} calls run on the connection already")
        call = self._calls[self._next_id] = make(self._next_id)
        self._peer_windows.open(self._next_id)
        self._next_id += 2
        return call

    def _forget(self, stream_id: int) -> bool:
        """Take a call out; return whether it still ran."""
        call = self._calls.pop(stream_id, None)
        self._peer_windows.close(stream_id)
        return call is not None

    def _refuse(self, why: str) -> None:
        """Take no further call."""
        self._refusal = self._refusal or why

    def _end_all(self, status: Status, *, after: int = 0) -> None:
        """End the calls on streams above a number, which the peer knows."""
        for call in [call for call in list(self._calls.values()) if call.stream_id > after]:
            self.end(call, status, None)

    def _known(self, stream_id: int) -> C | None:
        """Return a call that runs; None: it has ended here already. Raises ProtocolError if there was none."""
        if stream_id % 2 == 0 or stream_id >= self._next_id:
            raise ProtocolError(ErrorCode.PROTOCOL_ERROR, f"stream {stream_id} was never opened")
        return self._calls.get(stream_id)

    @abstractmethod
    def _reset_after(self, call: C) -> ErrorCode | None:
        """Return by what a stream is reset that the peer has ended; None: this side has ended it too."""

    def _on_headers(self, stream_id: int, headers: Mapping[str, str], *, is_last: bool) -> None:
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
            status = status_of(headers)
            if status.code is Code.OK and not call.is_between_messages:
                status = Status(Code.INTERNAL, "the stream ended inside a message")
            self.end(call, status, self._reset_after(call))
        elif "grpc-status" in headers:
            self.end(call, Status(Code.INTERNAL, "trailers without an end"), ErrorCode.PROTOCOL_ERROR)

    def _on_reset(self, stream_id: int, code: int) -> None:
        if (call := self._known(stream_id)) is not None:
            self.end(call, reset_status(code), None)

    def _on_goaway(self, last_stream_id: int, code: int) -> None:
        self._refuse(f"the peer goes away: {code}")
        self._end_all(Status(Code.UNAVAILABLE, "the peer went away before it took the call"), after=last_stream_id)

    def _on_setting(self, key: int, value: int) -> None:
        if key == Setting.MAX_CONCURRENT_STREAMS:
            self._most_calls = min(value, self.limits.num_streams)
        super()._on_setting(key, value)


class CallListener(Protocol):
    """Takes what happens to a call. Called from the connection's reading thread, in order; must not wait."""

    def allocate(self, num_bytes: int) -> memoryview:
        """Return writable memory for a message of this size."""

    def message(self, data: memoryview) -> None:
        """Take a message in `allocate`'s memory, of the window until its release; raise CallError to end the call."""

    def ended(self, status: Status) -> None:
        """Take the end of the call, once; nothing follows."""


class ClientCall:
    """One call that runs. Safe from any thread; no method waits."""

    def __init__(
        self, connection: ClientConnection, stream_id: int, listener: CallListener, turns: ReceiveTurns | None
    ) -> None:
        self._connection, self.stream_id = connection, stream_id
        self.ended = listener.ended
        limits, round_trip = connection.limits, connection.round_trip_seconds
        sizes = limits.stream_window_bytes, limits.num_held_bytes, limits.most_stream_window_bytes
        self.window = ReceiveWindow(*sizes, turns=turns, round_trip_seconds=round_trip)
        deliver = partial(_deliver, self.window, listener)  # not of this call: what has begun to arrive goes with it
        self.assembler = MessageAssembler(listener.allocate, deliver, limits.message_bytes)
        self.has_response = False

    @property
    def is_between_messages(self) -> bool:
        """Return whether no message has begun to arrive."""
        return self.assembler.is_between_messages

    def release(self, num_bytes: int) -> None:
        """Give back a message's share of what the call may hold; the peer may send more then."""
        self._connection.release(self, num_bytes)

    def cancel(self) -> None:
        """End the call, if it runs: the peer is told, and the listener hears nothing more once this returns.

        A message that the reading thread hands on at this very moment may still come.
        """
        self._connection.cancel(self)


def _deliver(window: ReceiveWindow, listener: CallListener, message: memoryview) -> None:
    window.hold(len(message))
    listener.message(message)


class ClientConnection(ThreadConnection, ClientCalls[ClientCall]):
    """One connection to a server. Made by `connect`; a thread must then `run` it."""

    def __init__(
        self,
        stream: ByteStream,
        authority: str,
        scheme: str,
        limits: Limits,
        timing: Timing,
        *,
        turns: ReceiveTurns | None = None,
        round_trip_seconds: float = 0.0,
    ) -> None:
        super().__init__(stream, limits, timing)
        self._authority, self._scheme = authority, scheme
        self._turns, self.round_trip_seconds = turns or ReceiveTurns(), round_trip_seconds
        self._lock = threading.Lock()  # of `_calls`, `_next_id` and `_refusal`
        self._opening = threading.Lock()
        self.silent_at = -math.inf
        """When it was given up because the peer was silent, monotonic."""

    def call(
        self,
        path: str,
        request: bytes,
        listener: CallListener,
        *,
        metadata: Metadata | None = None,
        timeout_seconds: float | None = None,
        is_in_turn: bool = True,
    ) -> ClientCall:
        """Send a request; raise CallError if the connection takes none, or breaks: the listener hears nothing.

        `is_in_turn`: whether what comes is later than, and goes before, what comes of others; else it takes its part.
        """
        headers = request_headers(path, self._authority, self._scheme, metadata or {}, timeout_seconds)
        with self._opening:  # streams must begin in the order of their numbers
            turns = self._turns if is_in_turn else None
            with self._lock:
                call = self._begin(lambda stream_id: ClientCall(self, stream_id, listener, turns))
            try:
                self.writer.send_headers(call.stream_id, headers, is_last=False)
            except OSError as error:
                raise self._broken(call, error) from error
        try:
            self.send_message(call.stream_id, [request], is_last=True)
        except StreamEndedError:
            pass  # it was answered before it was read; the listener knows the status
        except OSError as error:
            raise self._broken(call, error) from error
        return call

    def release(self, call: ClientCall, num_bytes: int) -> None:
        """Open a call's window by what its taker is done with."""
        opened = call.window.release(num_bytes)
        if opened and self._calls.get(call.stream_id) is call:
            try:
                self._opened(call.stream_id, opened)
            except OSError:
                self.shut_down()

    def cancel(self, call: ClientCall) -> None:
        """End a call that runs; its listener hears nothing more."""
        if self._forget(call.stream_id):
            try:
                self.post(reset_frame(call.stream_id, ErrorCode.CANCEL))
            except OSError:
                self.shut_down()

    def _broken(self, call: ClientCall, error: OSError) -> CallError:
        """Forget a call whose request could not be sent."""
        self._forget(call.stream_id)
        self.shut_down()
        return CallError(Code.UNAVAILABLE, f"the connection broke: {error}")

    def _forget(self, stream_id: int) -> bool:
        with self._lock:
            if (call := self._calls.get(stream_id)) is not None:
                call.window.close()
            return super()._forget(stream_id)

    def _refuse(self, why: str) -> None:
        with self._lock:
            super()._refuse(why)

    def _greet(self) -> None:
        self.writer.send(PREFACE + self._greeting(self.limits.frame_bytes, (Setting.ENABLE_PUSH, 0)))

    def _has_calls(self) -> bool:
        return bool(self._calls)

    def _reset_after(self, call: ClientCall) -> None:
        """Return None: a request that is still being sent ends with its window."""

    def _on_data(self, stream_id: int, num_bytes: int, padding: int, *, is_last: bool) -> None:
        call = self._known(stream_id)
        if call is None:
            self._reader.skip(num_bytes + padding)
            return
        try:
            if not call.has_response:
                raise CallError(Code.INTERNAL, "a message came before the headers")
            while num_bytes:  # in pieces, for a narrow link is to be asked for more while it brings a frame
                piece = min(num_bytes, call.window.piece_bytes)
                num_bytes -= piece
                opened = call.window.received(piece)
                call.assembler.fill(self._reader, piece)
                if not is_last and self._calls.get(stream_id) is call:
                    self._opened(stream_id, opened)
        except CallError as error:
            self._reader.skip(num_bytes + padding)
            self.end(call, error.status, ErrorCode.CANCEL)
            return
        self._reader.skip(padding)
        if is_last:
            self.end(call, Status(Code.INTERNAL, "the stream ended without trailers"), None)
        elif padding and self._calls.get(stream_id) is call:
            self._opened(stream_id, call.window.received(padding))

    def _ended(self, cause: Exception) -> None:
        if isinstance(cause, SilentPeerError):
            self.silent_at = time.monotonic()
        self._refuse(f"the connection is lost: {cause}")
        self._end_all(Status(Code.UNAVAILABLE, f"the connection was lost: {cause}"))


def connect(
    address: tuple[str, int],
    *,
    limits: Limits | None = None,
    timing: Timing | None = None,
    tls: ssl.SSLContext | None = None,
    server_name: str = "",
    turns: ReceiveTurns | None = None,
) -> ClientConnection:
    """Connect, start the reading thread, and wait for the peer's first settings.

    `server_name` is what the server's certificate must bear; empty: the host. `turns`: the order of its streams and
    those of other connections; None: of its own alone. Raises OSError if there is no connection
    within `timing.connect_seconds`, or the peer is no HTTP/2 server.
    """
    timing = timing or Timing()
    host, port = address
    began = time.monotonic()
    sock = socket.create_connection(address, timing.connect_seconds)
    round_trip = min(MOST_ROUND_TRIP_SECONDS, time.monotonic() - began)
    stream: ByteStream = sock
    try:
        prepare(sock, receive_seconds=SILENCE_SECONDS, send_seconds=timing.send_seconds)
        if tls is not None:
            stream = TlsStream.connect(sock, tls, server_name or host, timing.connect_seconds)
    except OSError:
        sock.close()
        raise
    authority = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    scheme, limits = "https" if tls else "http", limits or Limits()
    connection = ClientConnection(stream, authority, scheme, limits, timing, turns=turns, round_trip_seconds=round_trip)
    threading.Thread(target=connection.run, name="h2-client", daemon=True).start()
    if not connection.greeted.wait(timing.connect_seconds) or not connection.is_open:
        connection.shut_down()
        raise ConnectionError(f"{authority} did not answer as an HTTP/2 server")
    return connection
