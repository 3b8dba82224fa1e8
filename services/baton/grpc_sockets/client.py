"""The calling side: one connection, any number of calls at once; responses are received into given memory."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Mapping
from functools import partial
from typing import Protocol

from baton.grpc_sockets.connection import SILENCE_SECONDS, Connection
from baton.grpc_sockets.flow_control import ReceiveWindow, StreamEndedError
from baton.grpc_sockets.frame_io import MessageAssembler
from baton.grpc_sockets.frames import (
    PREFACE,
    ErrorCode,
    ProtocolError,
    Setting,
    reset_frame,
)
from baton.grpc_sockets.headers import Metadata, check_response, request_headers, reset_status, status_of
from baton.grpc_sockets.limits import Limits, Timing
from baton.grpc_sockets.sockets import ByteStream, prepare
from baton.grpc_sockets.status import CallError, Code, Status
from baton.grpc_sockets.tls import TlsStream


class CallListener(Protocol):
    """Takes what happens to a call. Called from the connection's reading thread, in order; must not wait."""

    def allocate(self, num_bytes: int) -> memoryview:
        """Return writable memory for a message of this size."""

    def message(self, data: memoryview) -> None:
        """Take a message, in the memory that `allocate` gave. It counts against the window until it is released.

        Raises:
            CallError: If it cannot be used; the call ends with that status.
        """

    def ended(self, status: Status) -> None:
        """Take the end of the call, once; nothing follows."""


class ClientCall:
    """One call that runs. Safe from any thread; no method waits."""

    def __init__(self, connection: ClientConnection, stream_id: int, listener: CallListener) -> None:
        self._connection = connection
        self.stream_id = stream_id
        self.listener = listener
        limits = connection.limits
        self.window = ReceiveWindow(limits.stream_window_bytes, limits.num_held_bytes, limits.most_stream_window_bytes)
        deliver = partial(_deliver, self.window, listener)  # not of this call: what has begun to arrive goes with it
        self.assembler = MessageAssembler(listener.allocate, deliver, limits.message_bytes)
        self.has_response = False

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


class ClientConnection(Connection):
    """One connection to a server. Made by `connect`; a thread must then `run` it."""

    def __init__(self, stream: ByteStream, authority: str, scheme: str, limits: Limits, timing: Timing) -> None:
        super().__init__(stream, limits, timing)
        self._authority = authority
        self._scheme = scheme
        self._lock = threading.Lock()
        self._opening = threading.Lock()
        self._calls: dict[int, ClientCall] = {}
        self._next_id = 1
        self._most_calls = limits.num_streams
        self._refusal = ""

    @property
    def is_open(self) -> bool:
        """Return whether calls can be made."""
        return not self._refusal

    def call(
        self,
        path: str,
        request: bytes,
        listener: CallListener,
        *,
        metadata: Metadata | None = None,
        timeout_seconds: float | None = None,
    ) -> ClientCall:
        """Make a call; returns when the request has been sent.

        Raises:
            CallError: If the connection takes no call, or breaks; the listener hears nothing then.
        """
        headers = request_headers(path, self._authority, self._scheme, metadata or {}, timeout_seconds)
        with self._opening:  # streams must begin in the order of their numbers
            call = self._register(listener)
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
            self._post(call.stream_id, opened)

    def cancel(self, call: ClientCall) -> None:
        """End a call that runs; its listener hears nothing more."""
        if self._forget(call.stream_id) is not None:
            try:
                self.writer.post(reset_frame(call.stream_id, ErrorCode.CANCEL))
            except OSError:
                self.shut_down()

    def _post(self, stream_id: int, num_bytes: int) -> None:
        try:
            self._opened(stream_id, num_bytes)
        except OSError:
            self.shut_down()

    def _register(self, listener: CallListener) -> ClientCall:
        with self._lock:
            if self._refusal:
                raise CallError(Code.UNAVAILABLE, self._refusal)
            if len(self._calls) >= self._most_calls:
                raise CallError(Code.RESOURCE_EXHAUSTED, f"{self._most_calls} calls run on the connection already")
            call = self._calls[self._next_id] = ClientCall(self, self._next_id, listener)
            self.windows.open(self._next_id)
            self._next_id += 2
        return call

    def _broken(self, call: ClientCall, error: OSError) -> CallError:
        """Forget a call whose request could not be sent."""
        self._forget(call.stream_id)
        self.shut_down()
        return CallError(Code.UNAVAILABLE, f"the connection broke: {error}")

    def _forget(self, stream_id: int) -> ClientCall | None:
        with self._lock:
            call = self._calls.pop(stream_id, None)
        self.windows.close(stream_id)
        return call

    def _end(self, stream_id: int, status: Status, *, reset: ErrorCode | None = None) -> None:
        call = self._forget(stream_id)
        if call is not None:
            call.listener.ended(status)
            if reset is not None:
                self.writer.post(reset_frame(stream_id, reset))

    def _greet(self) -> None:
        self._send_settings((Setting.ENABLE_PUSH, 0), before=PREFACE)

    def _has_calls(self) -> bool:
        return bool(self._calls)

    def _on_setting(self, key: int, value: int) -> None:
        if key == Setting.MAX_CONCURRENT_STREAMS:
            self._most_calls = min(value, self.limits.num_streams)

    def _on_headers(self, stream_id: int, headers: Mapping[str, str], *, is_last: bool) -> None:
        call = self._calls.get(stream_id)
        if call is None:
            self._check_known(stream_id)
            return
        try:
            if not call.has_response:
                if headers.get(":status", "").startswith("1") and not is_last:
                    return  # an interim response
                check_response(headers)
                call.has_response = True
        except CallError as error:
            self._end(stream_id, error.status, reset=None if is_last else ErrorCode.CANCEL)
            return
        if is_last:
            self._end(stream_id, self._final_status(call, headers))
        elif "grpc-status" in headers:
            self._end(stream_id, Status(Code.INTERNAL, "trailers without an end"), reset=ErrorCode.PROTOCOL_ERROR)

    def _on_data(self, stream_id: int, num_bytes: int, padding: int, *, is_last: bool) -> None:
        call = self._calls.get(stream_id)
        if call is None:
            self._check_known(stream_id)
            self._reader.skip(num_bytes + padding)
            return
        opened = call.window.received(num_bytes + padding)
        try:
            if not call.has_response:
                self._reader.skip(num_bytes)
                raise CallError(Code.INTERNAL, "a message came before the headers")
            call.assembler.fill(self._reader, num_bytes)
        except CallError as error:
            self._reader.skip(padding)
            self._end(stream_id, error.status, reset=ErrorCode.CANCEL)
            return
        self._reader.skip(padding)
        if is_last:
            self._end(stream_id, Status(Code.INTERNAL, "the stream ended without trailers"))
        elif self._calls.get(stream_id) is call:
            self._opened(stream_id, opened)

    def _on_reset(self, stream_id: int, code: int) -> None:
        self._check_known(stream_id)
        self._end(stream_id, reset_status(code))

    def _on_goaway(self, last_stream_id: int, code: int) -> None:
        self._refuse(f"the peer goes away: {code}")
        for stream_id in [stream_id for stream_id in list(self._calls) if stream_id > last_stream_id]:
            self._end(stream_id, Status(Code.UNAVAILABLE, "the peer went away before it took the call"))

    def _ended(self, cause: Exception) -> None:
        self._refuse(f"the connection is lost: {cause}")
        for stream_id in list(self._calls):
            self._end(stream_id, Status(Code.UNAVAILABLE, f"the connection was lost: {cause}"))

    def _refuse(self, why: str) -> None:
        with self._lock:
            self._refusal = self._refusal or why

    def _check_known(self, stream_id: int) -> None:
        if stream_id % 2 == 0 or stream_id >= self._next_id:
            raise ProtocolError(ErrorCode.PROTOCOL_ERROR, f"stream {stream_id} was never opened")

    @staticmethod
    def _final_status(call: ClientCall, trailers: Mapping[str, str]) -> Status:
        status = status_of(trailers)
        if status.code is Code.OK and not call.assembler.is_between_messages:
            return Status(Code.INTERNAL, "the stream ended inside a message")
        return status


def connect(
    address: tuple[str, int],
    *,
    limits: Limits | None = None,
    timing: Timing | None = None,
    tls: ssl.SSLContext | None = None,
    server_name: str = "",
) -> ClientConnection:
    """Connect, start the reading thread, and wait for the peer's first settings.

    Args:
        address: Host and port.
        limits: Bounds of what the peer may send.
        timing: How long it is waited for.
        tls: Context that verifies the server; None: plain.
        server_name: Name that the server's certificate must bear; empty: the host.

    Raises:
        OSError: If there is no connection within `timing.connect_seconds`, or the peer is no HTTP/2 server.
    """
    timing = timing or Timing()
    host, port = address
    sock = socket.create_connection(address, timing.connect_seconds)
    stream: ByteStream = sock
    try:
        prepare(sock, receive_seconds=SILENCE_SECONDS, send_seconds=timing.send_seconds)
        if tls is not None:
            stream = TlsStream.connect(sock, tls, server_name or host, timing.connect_seconds)
    except OSError:
        sock.close()
        raise
    authority = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    connection = ClientConnection(stream, authority, "https" if tls else "http", limits or Limits(), timing)
    threading.Thread(target=connection.run, name="h2-client", daemon=True).start()
    if not connection.greeted.wait(timing.connect_seconds) or not connection.is_open:
        connection.shut_down()
        raise ConnectionError(f"{authority} did not answer as an HTTP/2 server")
    return connection
