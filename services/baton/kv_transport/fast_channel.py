"""The fast path to a prefill node seen from the event loop: connections and streams live on threads of `grpc_sockets`.

Threads, not a process: beside a thread that holds the GIL two thirds of its time, as an engine may, receiving at
1.6 GB/s made that thread's steps 12 % longer (median), and receiving in another process 4 %, which would leave the KV
there. `sys.setswitchinterval` made little difference.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Self

import grpc
from google.protobuf.message import DecodeError
from opentelemetry import propagate

from baton.errors import ConfigurationError, StreamBrokenError, UnavailableError
from baton.grpc_sockets.client import ClientCall, ClientConnection, connect
from baton.grpc_sockets.flow_control import ReceiveTurns
from baton.grpc_sockets.headers import CallError, Code, Status
from baton.grpc_sockets.limits import Limits, Timing
from baton.internal.v1 import prefill_service_pb2
from baton.kv.stream import StagingPool, frame_crc32c
from baton.kv_transport.frame_codec import ReceivedFrame, parse_response, serialize_request, with_payload
from baton.kv_transport.kv_services import PREFILL_PATH, PROBE_PATH
from baton.rpc.channel import KV_WINDOW_BYTES, MAX_MESSAGE_BYTES
from baton.rpc.status import PEER_SILENT, error_from_status, info_of
from baton.security.tls import identity_towards
from baton.shm.lender import Loan

log = logging.getLogger(__name__)

Message = prefill_service_pb2.PrefillResponse | ReceivedFrame
"""What a KV stream consists of."""

SILENT_SECONDS = 2.0
"""Time for which a node that has fallen silent is not called: then the router knows, and names it no more."""
PAUSE_SECONDS = 30.0
"""Time for which a peer that could not be reached is not tried again: a request that tries may wait in vain."""
_NUM_THREADS = 4
LIMITS = Limits(
    message_bytes=MAX_MESSAGE_BYTES,
    num_streams=256,
    stream_window_bytes=KV_WINDOW_BYTES,
    most_stream_window_bytes=4 * KV_WINDOW_BYTES,
    num_held_bytes=16 << 20,
)
"""Bounds of a connection that carries KV."""


def limits_for(frame_bytes: int) -> Limits:
    """Return the bounds of a connection with frames of a size at most: a window and a frame of each stream wait."""
    return replace(
        LIMITS,
        stream_window_bytes=min(LIMITS.stream_window_bytes, frame_bytes),
        most_stream_window_bytes=min(LIMITS.most_stream_window_bytes, frame_bytes),
        num_held_bytes=min(LIMITS.num_held_bytes, frame_bytes),
    )


_TIMING = Timing(connect_seconds=1.0)
_NO_PATH = frozenset({Code.UNIMPLEMENTED, Code.UNKNOWN, Code.INTERNAL, Code.RESOURCE_EXHAUSTED})
"""Codes that, without a reason of Baton's, mean that the path does not work; others say that the node does not."""
_CODES = {code.value[0]: code for code in grpc.StatusCode}


class FastPathError(UnavailableError):
    """The fast path gave no stream, and the prefill node has not begun with one; `reason` says why."""


class FastStream:
    """One KV stream. The reading thread calls what `grpc_sockets.client.CallListener` names; the event loop the rest.

    Invariants: frames are received into staging memory and checksummed by the reading thread; the window opens again as
    the event loop takes the next message, so what waits here is bounded; after `close` nothing more arrives, and
    nothing of what has arrived is kept, nor is the call, which knows the stream. `loan` is memory that the sender may
    have taken; None: none was offered.
    """

    def __init__(self, staging: StagingPool, is_closed: Callable[[], bool], loan: Loan | None = None) -> None:
        self._staging, self._loan = staging, loan
        self._is_closed = is_closed
        self._loop = asyncio.get_running_loop()
        self._call: ClientCall | None = None
        self._items: deque[tuple[Message, int]] = deque()
        self._status: Status | None = None
        self._changed = asyncio.Event()
        self._num_taken_bytes = 0
        self._is_over = False

    def allocate(self, num_bytes: int) -> memoryview:
        """Return memory for a message."""
        return self._staging.give(num_bytes)

    def message(self, data: memoryview) -> None:
        """Take a message from the network."""
        try:
            message = parse_response(data)
        except DecodeError as error:
            raise CallError(Code.INTERNAL, "a message of the KV stream cannot be read") from error
        if isinstance(message, ReceivedFrame):
            # Whoever takes the message finds that it cannot be `with_payload`.
            with contextlib.suppress(StreamBrokenError):
                message = with_payload(message, self._loan)
                message = message.checked(frame_crc32c(message.frame))
        self._post(self._append, message, len(data))

    def ended(self, status: Status) -> None:
        """Take the end of the stream."""
        self._post(self._end, status)

    def begin(self, call: ClientCall) -> None:
        """Set the call whose messages these are."""
        self._call = call

    async def first(self) -> Message:
        """Wait for the first message; raise FastPathError if the path is refused, BatonError if the request is."""
        await self._wait()
        status = self._status
        if not self._items and status is not None and status.code in _NO_PATH and info_of(status.details) is None:
            raise FastPathError(f"{status.code.name}: {status.message}", reason="REFUSED")
        return self._peek()

    def close(self) -> None:
        """End the stream, if it runs."""
        self._is_over = True
        self._items.clear()
        call, self._call = self._call, None
        if call is not None:
            call.cancel()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Message:
        self._release()
        await self._wait()
        if not self._items and self._status is not None and self._status.code is Code.OK:
            raise StopAsyncIteration
        message = self._peek()
        _, self._num_taken_bytes = self._items.popleft()
        return message

    def _peek(self) -> Message:
        """Return the message that waits; raise BatonError if the stream has ended instead."""
        if self._items:
            return self._items[0][0]
        if self._is_closed():
            raise UnavailableError("the connection to the prefill node was closed", reason="CHANNEL_CLOSED")
        status = self._status or Status(Code.UNKNOWN)
        raise error_from_status(_CODES[int(status.code)], status.message, info_of(status.details))

    async def _wait(self) -> None:
        while not self._items and self._status is None:
            self._changed.clear()
            await self._changed.wait()

    def _release(self) -> None:
        num_bytes, self._num_taken_bytes = self._num_taken_bytes, 0
        if num_bytes and self._call is not None:
            self._call.release(num_bytes)

    def _append(self, message: Message, num_bytes: int) -> None:
        if not self._is_over:
            self._items.append((message, num_bytes))
            self._changed.set()

    def _end(self, status: Status) -> None:
        self._status = status
        self._changed.set()

    def _post(self, function: Callable[..., None], *arguments: object) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            self._loop.call_soon_threadsafe(function, *arguments)


class _ProbeStream(FastStream):
    """A link probe: all that is told of what comes is how much."""

    def message(self, data: memoryview) -> None:
        self._post(self._append, prefill_service_pb2.PrefillResponse(), len(data))


class FastChannel:
    """Streams from a prefill node over a connection of its own, made when needed, with TLS as its context has.

    `turns`: the order of its streams and those from other nodes; None: of its own alone.
    """

    def __init__(
        self, address: str, staging: StagingPool, limits: Limits = LIMITS, turns: ReceiveTurns | None = None
    ) -> None:
        self._address = address
        self._connect_to = partial(connect, limits=limits, timing=_TIMING, turns=turns)
        self._staging = staging
        self._identity = identity_towards(address)
        self._executor = ThreadPoolExecutor(_NUM_THREADS, thread_name_prefix="fast-kv")
        self._lock = threading.Lock()  # of what follows; held while the connection is made, by threads of the executor
        self._connection: ClientConnection | None = None
        self._retry_at = 0.0
        self._is_closed = False

    async def prefill(self, request: prefill_service_pb2.PrefillRequest, loan: Loan | None = None) -> FastStream:
        """Ask for a prompt's KV, up to its layout; raise FastPathError without the path, BatonError if refused."""
        stream = FastStream(self._staging, lambda: self._is_closed, loan)
        try:
            await self._begin(stream, PREFILL_PATH, serialize_request(request))
            await stream.first()
        except BaseException:
            stream.close()
            raise
        return stream

    async def probe(self, num_bytes: int, timeout_seconds: float) -> AsyncIterator[object]:
        """Call `ProbeLink`; raise FastPathError without the path, BatonError if refused, TimeoutError."""
        stream = _ProbeStream(self._staging, lambda: self._is_closed)
        request = prefill_service_pb2.ProbeLinkRequest(byte_count=num_bytes)
        with contextlib.closing(stream):
            async with asyncio.timeout(timeout_seconds):
                await self._begin(stream, PROBE_PATH, request.SerializeToString())
                async for message in stream:
                    yield message

    async def _begin(self, stream: FastStream, path: str, request: bytes) -> None:
        metadata: dict[str, str | bytes] = {}
        propagate.inject(metadata)
        call = partial(self._call, path, request, stream, metadata)
        try:
            making = asyncio.get_running_loop().run_in_executor(self._executor, call)
        except RuntimeError as error:  # of an executor that is shut down
            raise FastPathError(f"{self._address}: the channel is closed", reason="CONNECT_FAILED") from error
        try:
            stream.begin(await asyncio.shield(making))
        except BaseException:
            making.add_done_callback(_cancel_made)
            raise

    def close(self) -> None:
        """End the connection and every stream on it."""
        self._is_closed = True
        self._executor.shutdown(wait=False)
        connection = self._connection
        if connection is not None:
            connection.shut_down()

    def _call(self, path: str, request: bytes, stream: FastStream, metadata: dict[str, str | bytes]) -> ClientCall:
        """Make the call, and the connection if there is none. In a thread of the executor."""
        try:
            is_in_turn = path != PROBE_PATH  # which tells what the link carries, not what others leave of it
            return self._connected().call(path, request, stream, metadata=metadata, is_in_turn=is_in_turn)
        except CallError as error:
            is_lost = error.status.code is Code.UNAVAILABLE
            raise FastPathError(error.status.message, reason="CONNECT_FAILED" if is_lost else "REFUSED") from error

    def _connected(self) -> ClientConnection:
        with self._lock:
            if self._connection is not None:
                if self._connection.is_open:
                    return self._connection
                if time.monotonic() - self._connection.silent_at < SILENT_SECONDS:
                    raise UnavailableError(f"{self._address} was silent a moment ago", reason=PEER_SILENT)
            if self._is_closed or time.monotonic() < self._retry_at:
                raise FastPathError(f"{self._address} could not be reached a moment ago", reason="CONNECT_FAILED")
            host, _, port = self._address.rpartition(":")
            try:
                connection = self._connect(host.strip("[]"), int(port))
            except (OSError, ValueError, ConfigurationError) as error:
                self._retry_at = time.monotonic() + PAUSE_SECONDS
                log.warning("fast_path_unreachable address=%s cause=%s", self._address, error)
                raise FastPathError(f"{self._address}: {error}", reason="CONNECT_FAILED") from error
            self._connection = connection
        if self._is_closed:
            connection.shut_down()
        return connection

    def _connect(self, host: str, port: int) -> ClientConnection:
        if self._identity is None:
            return self._connect_to((host, port))
        context, name = self._identity.client_context(), self._identity.server_name
        return self._connect_to((host, port), tls=context, server_name=name)


def _cancel_made(making: asyncio.Future[ClientCall]) -> None:
    """Cancel a call that nobody waits for, once it has been made."""
    if not making.cancelled() and making.exception() is None:
        making.result().cancel()
