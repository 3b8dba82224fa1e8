"""The serving side of a connection: requests are collected, each call is served in a thread of its own."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence

from baton.grpc_sockets.connection import ThreadConnection
from baton.grpc_sockets.flow_control import StreamEndedError
from baton.grpc_sockets.frames import PREFACE, ErrorCode, ProtocolError, Setting, goaway_frame, reset_frame
from baton.grpc_sockets.headers import (
    OK,
    RESPONSE_HEADERS,
    CallError,
    Code,
    Status,
    metadata_of,
    timeout_of,
    trailers_of,
)
from baton.grpc_sockets.incoming_request import IncomingRequest, ServerBudgets
from baton.grpc_sockets.limits import Limits, Timing
from baton.grpc_sockets.sockets import Buffer, ByteStream


class ServerCall:
    """One call with one request and any number of responses; used by the thread that serves it.

    `path` is "/package.Service/Method", `metadata` what the caller sent beyond the protocol's headers, `peer_names` the
    common names of its certificate; None: the connection has no TLS.
    """

    def __init__(
        self,
        connection: ThreadConnection,
        stream_id: int,
        path: str,
        metadata: Mapping[str, str | bytes],
        request: bytes,
        timeout_seconds: float | None,
        peer_names: Sequence[str] | None = None,
    ) -> None:
        self.peer_names, self.path = peer_names, path
        self.metadata, self.request = metadata, request
        self.deadline = None if timeout_seconds is None else time.monotonic() + timeout_seconds
        """On the monotonic clock; None: no limit. Whoever serves the call keeps it where it waits."""
        self._connection, self._stream_id = connection, stream_id
        self._has_begun = False
        self._lock = threading.Lock()
        self.is_over = False
        """Whether nobody waits for this call any more."""
        self._on_cancelled: Callable[[], None] = lambda: None

    def remaining_seconds(self) -> float | None:
        """Return the time until the deadline, 0 or more; None: no limit."""
        return None if self.deadline is None else max(0.0, self.deadline - time.monotonic())

    def watch(self, on_cancelled: Callable[[], None]) -> None:
        """Have a function called, once, from another thread, when the caller cancels or is lost; at once if it has."""
        with self._lock:
            self._on_cancelled = on_cancelled
            is_over = self.is_over
        if is_over:
            on_cancelled()

    def cancelled(self) -> None:
        """Take note that nobody waits for this call any more."""
        with self._lock:
            was_over, self.is_over = self.is_over, True
            on_cancelled = self._on_cancelled
        self._connection.windows.close(self._stream_id)
        if not was_over:
            on_cancelled()

    def send(self, *parts: Buffer) -> None:
        """Send a response's buffers; raise StreamEndedError if the caller is gone, TimeoutError at the deadline."""
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
            was_over, self.is_over = self.is_over, True
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
        if self.is_over:
            raise StreamEndedError("the call is over")
        if not self._has_begun:
            self._has_begun = True
            self._connection.writer.send_headers(self._stream_id, RESPONSE_HEADERS, is_last=False)


log = logging.getLogger(__name__)

Handler = Callable[[ServerCall], None]
"""Serves a call: sends responses, returns for OK, raises CallError for another status. Runs in the call's thread."""


_SMALL_BYTES = 64
"""DATA frames below, but for a request's last, count as control frames: they cost as much."""


class ServerConnection(ThreadConnection):
    """One caller's connection. `peer_names` are common names of the caller's certificate; None: without TLS."""

    def __init__(
        self,
        stream: ByteStream,
        handlers: Mapping[str, Handler],
        limits: Limits,
        timing: Timing,
        peer_names: Sequence[str] | None,
        budgets: ServerBudgets,
    ) -> None:
        super().__init__(stream, limits, timing)
        self._budgets = budgets
        self.due_seconds = time.monotonic() + timing.connect_seconds
        """When the caller must have sent what it has begun, monotonic; whoever watches cuts it off, drip as it may."""
        self._peer_names, self._handlers = peer_names, handlers
        self._lock = threading.Lock()
        self._incoming: dict[int, IncomingRequest] = {}
        self._calls: dict[int, ServerCall] = {}
        self._idle = threading.Condition(self._lock)
        self._is_draining = False

    def drain(self) -> None:
        """Take no further calls; those that run go on."""
        self._is_draining = True
        try:
            self.writer.post(goaway_frame(self._last_stream_id, ErrorCode.NO_ERROR, "shutting down"))
        except OSError:
            self.shut_down()

    def wait_idle(self, timeout_seconds: float) -> bool:
        """Wait until no call runs; return whether that came about."""
        with self._idle:
            return self._idle.wait_for(lambda: not self._calls, timeout_seconds)

    def _greet(self) -> None:
        if self._reader.read(len(PREFACE)) != PREFACE:
            raise ProtocolError(ErrorCode.PROTOCOL_ERROR, "this is no HTTP/2 client")
        self.writer.send(
            self._greeting(self.limits.frame_bytes, (Setting.MAX_CONCURRENT_STREAMS, self.limits.num_streams))
        )

    def _has_calls(self) -> bool:
        return bool(self._calls or self._incoming)

    def _on_greeting(self) -> None:
        super()._on_greeting()
        self._set_due()

    def _on_headers(self, stream_id: int, headers: Mapping[str, str], *, is_last: bool) -> None:
        self._checker.spend()
        if stream_id in self._incoming and is_last:
            self._request_ended(stream_id)  # trailers of a request say nothing in gRPC
            return
        if stream_id <= self._last_stream_id:
            return  # of a stream that this side has ended already
        if stream_id % 2 == 0:
            raise ProtocolError(ErrorCode.PROTOCOL_ERROR, f"stream {stream_id} is not a client's")
        self._last_stream_id = stream_id
        if self._is_draining or len(self._calls) + len(self._incoming) >= self.limits.num_streams:
            self.writer.post(reset_frame(stream_id, ErrorCode.REFUSED_STREAM))
            return
        path, problem = headers.get(":path", ""), _problem_of(headers)
        if problem is None and path not in self._handlers:
            problem = Status(Code.UNIMPLEMENTED, f"unknown method {path[:128]!r}")
        if problem is not None:
            self._refuse(stream_id, problem, has_ended=is_last)
            return
        if not self._budgets.calls.take(1):
            self.writer.post(reset_frame(stream_id, ErrorCode.REFUSED_STREAM))
            return
        due, budget = time.monotonic() + self.timing.request_seconds, self._budgets.request_bytes
        self._incoming[stream_id] = IncomingRequest(path, headers, self.limits, due, budget)
        self._set_due()
        if is_last:
            self._request_ended(stream_id)

    def _on_data(self, stream_id: int, num_bytes: int, padding: int, *, is_last: bool) -> None:
        incoming = self._incoming.get(stream_id)
        if incoming is None or (num_bytes < _SMALL_BYTES and not is_last):
            self._checker.spend()
        if incoming is None:
            if stream_id > self._last_stream_id:
                raise ProtocolError(ErrorCode.PROTOCOL_ERROR, f"DATA on stream {stream_id}, which is not open")
            self._reader.skip(num_bytes + padding)
            return
        opened = incoming.window.received(num_bytes + padding)
        try:
            incoming.fill(self._reader, num_bytes)
        except CallError as error:
            self._reader.skip(padding)
            self._refuse(stream_id, error.status, has_ended=is_last)
            return
        self._reader.skip(padding)
        if is_last:
            self._request_ended(stream_id)
        else:
            self._opened(stream_id, opened)

    def _on_reset(self, stream_id: int, code: int) -> None:  # noqa: ARG002
        if stream_id > self._last_stream_id:
            raise ProtocolError(ErrorCode.PROTOCOL_ERROR, f"RST_STREAM on stream {stream_id}, which is not open")
        self._drop(stream_id)
        call = self._calls.get(stream_id)
        if call is not None:
            call.cancelled()

    def _on_goaway(self, last_stream_id: int, code: int) -> None:
        """Do nothing: calls that run may end, and a client that goes opens no others."""

    def _ended(self, cause: Exception) -> None:
        log.debug("h2_connection_ended cause=%s", cause)
        for stream_id in list(self._incoming):
            self._drop(stream_id)
        with self._lock:
            calls = list(self._calls.values())
        for call in calls:
            call.cancelled()

    def _request_ended(self, stream_id: int) -> None:
        incoming = self._incoming[stream_id]
        message = incoming.message()
        if message is None:
            self._refuse(stream_id, Status(Code.INTERNAL, "expected one whole request message"), has_ended=True)
            return
        try:
            metadata, timeout = metadata_of(incoming.headers), timeout_of(incoming.headers)
        except CallError as error:
            self._refuse(stream_id, error.status, has_ended=True)
            return
        del self._incoming[stream_id]
        self._set_due()
        call = ServerCall(self, stream_id, incoming.path, metadata, message, timeout, self._peer_names)
        self.windows.open(stream_id)
        with self._lock:
            self._calls[stream_id] = call
        serving = threading.Thread(target=self._serve, args=(stream_id, call, incoming), name="h2-call", daemon=True)
        try:
            serving.start()
        except RuntimeError:  # no thread can be started
            log.warning("h2_call_refused path=%s", call.path)
            self._end(stream_id, call, incoming, Status(Code.RESOURCE_EXHAUSTED, "no thread is left; try again soon"))

    def _serve(self, stream_id: int, call: ServerCall, incoming: IncomingRequest) -> None:
        try:
            self._handlers[call.path](call)
            status = OK
        except CallError as error:
            status = error.status
        except StreamEndedError:
            status = Status(Code.CANCELLED)
        except TimeoutError:
            status = Status(Code.DEADLINE_EXCEEDED, "the deadline has passed")
        except Exception as error:  # the edge of the call's thread
            log.exception("h2_call_failed path=%s", call.path)
            status = Status(Code.INTERNAL, f"internal error: {type(error).__name__}")
        self._end(stream_id, call, incoming, status)

    def _end(self, stream_id: int, call: ServerCall, incoming: IncomingRequest, status: Status) -> None:
        try:
            call.end(status)
        finally:
            self._give_back(incoming)
            with self._idle:
                del self._calls[stream_id]
                self._idle.notify_all()

    def _refuse(self, stream_id: int, status: Status, *, has_ended: bool) -> None:
        """End a call without serving it."""
        self._drop(stream_id)
        self.writer.send_headers(stream_id, [*RESPONSE_HEADERS, *trailers_of(status)], is_last=True)
        if not has_ended:
            self.writer.post(reset_frame(stream_id, ErrorCode.NO_ERROR))

    def _drop(self, stream_id: int) -> None:
        """Forget a request that is arriving, if there is one."""
        incoming = self._incoming.pop(stream_id, None)
        if incoming is not None:
            self._give_back(incoming)
            self._set_due()

    def _give_back(self, incoming: IncomingRequest) -> None:
        self._budgets.calls.give_back(1)
        self._budgets.request_bytes.give_back(incoming.num_bytes)

    def _set_due(self) -> None:
        """Wait for the oldest request that is arriving."""
        oldest = next(iter(self._incoming.values()), None)
        self.due_seconds = math.inf if oldest is None else oldest.due_seconds


def _problem_of(headers: Mapping[str, str]) -> Status | None:
    """Return why headers do not begin a gRPC call; None: they do."""
    if headers.get(":method") != "POST":
        return Status(Code.UNIMPLEMENTED, "expected POST")
    content_type = headers.get("content-type", "")
    if content_type.partition(";")[0] not in ("application/grpc", "application/grpc+proto"):
        return Status(Code.INTERNAL, f"expected content type application/grpc, got {content_type[:64]!r}")
    if headers.get("grpc-encoding", "identity") != "identity":
        return Status(Code.UNIMPLEMENTED, "compressed messages are not supported")
    return None
