"""Channels without a thread: gRPC on the event loop's own connection, for calls that many requests make.

Generated stubs work with a `LoopChannel` as with `grpc.aio.Channel`; errors are grpc.aio's. Package `grpc_sockets` says
what the library costs beside it.
"""

from __future__ import annotations

import asyncio
import itertools
import socket
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar

import grpc
from opentelemetry import propagate, trace
from opentelemetry.util.types import AttributeValue

from baton.errors import ConfigurationError
from baton.grpc_sockets.headers import DETAILS_KEY, CallError, Code, Status, fixed_block, request_headers
from baton.grpc_sockets.limits import Limits, Timing
from baton.grpc_sockets.loop_connection import CANCELLED_HERE, LoopCall, LoopConnection, connect
from baton.rpc.channel import CONNECT_MILLISECONDS, MAX_MESSAGE_BYTES
from baton.rpc.status import status_of
from baton.security.tls import identity_towards
from baton.telemetry import names
from baton.telemetry.tracing import is_tracing, note_status, rpc_attributes, span

T = TypeVar("T")
Serialize: TypeAlias = Callable[[Any], bytes]
Deserialize: TypeAlias = Callable[[bytes], T]

_CODES = {code.value[0]: code for code in grpc.StatusCode}
_LIMITS = Limits(message_bytes=MAX_MESSAGE_BYTES, num_streams=4096, stream_window_bytes=4 << 20)
_TIMING = Timing(connect_seconds=CONNECT_MILLISECONDS / 1000)
_STAGGER_SECONDS = 0.25
"""Pause after which one more connection is tried, where another may meet another process."""


class LoopChannel:
    """Calls one server over a connection that is made when a call needs it, and made again when it was lost.

    It uses TLS where the context in which it was made has an identity.

    Args:
        address: host:port; several, separated by commas, if it is balanced.
        is_balanced: Whether several processes may stand behind the address, as behind a Service of Kubernetes: while a
            connection is not made another one is tried, and after one that was lost the next.

    Raises ConfigurationError if the address is another.
    """

    def __init__(self, address: str, *, is_balanced: bool = False) -> None:
        parts = [part.strip() for part in address.split(",")] if is_balanced else [address]
        self._places = [_place(part) for part in parts]
        self._address, self._addresses = parts[0], address
        self._identity = identity_towards(parts[0])
        self._is_balanced = is_balanced
        self._resolving: asyncio.Future[Any] | None = None
        self._known: Sequence[_Place] = ()
        self._first = 0  # of what is known, for the next connection
        self._connecting: asyncio.Task[LoopConnection] | None = None
        self._connection: LoopConnection | None = None
        self._retired = list[LoopConnection]()
        """Take no further call, but calls may still run on them."""
        self._is_closed = False

    def renew(self) -> None:
        """Have later calls go over another connection, to the next address where there are several."""
        if self._connection is not None:
            self._connection.retire()

    async def __aenter__(self) -> LoopChannel:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """End every connection and every call on it."""
        self._is_closed = True
        for task in (self._connecting, self._resolving):
            if task is not None:
                task.cancel()
        if self._connection is not None:
            self._connection.shut_down(CANCELLED_HERE)
        for connection in self._retired:
            connection.shut_down(CANCELLED_HERE)

    async def connected(self) -> LoopConnection:
        """Return the connection, made if there is none that takes a call.

        Raises:
            AioRpcError: UNAVAILABLE, if the server cannot be reached.
            CancelledError: If the channel is closed, as grpc.aio has it.
        """
        if self._connection is not None and self._connection.is_open and not self._connection.is_full:
            return self._connection
        if self._is_closed:
            raise asyncio.CancelledError("the channel is closed")
        if self._connecting is None or self._connecting.done():
            self._connecting = asyncio.create_task(self._reconnect())
            self._connecting.add_done_callback(_take_failure)
        return await asyncio.shield(self._connecting)  # a caller's short deadline must not end it for the next

    async def _reconnect(self) -> LoopConnection:
        if self._connection is not None:
            self._connection.retire()
            self._retired = [each for each in (*self._retired, self._connection) if not each.is_lost]
            self._connection = None
        try:
            connection = await (self._connect_first() if self._is_balanced else self._connect(self._places[0]))
        except (OSError, ConfigurationError) as error:
            text = f"failed to connect to {self._addresses}: {error or type(error).__name__}"
            raise rpc_error(Status(Code.UNAVAILABLE, text)) from error
        self._connection = connection
        if self._is_closed:
            connection.shut_down(CANCELLED_HERE)
        return connection

    # What generated stubs ask for; names and arguments are grpc.aio's.

    def unary_unary(
        self, path: str, request_serializer: Serialize, response_deserializer: Deserialize[T], **_: Any
    ) -> Callable[..., Any]:
        """Return a function that makes a call, `await`ed for its response; `timeout` in seconds."""
        headers, is_traced = self._headers_of(path), path not in names.BACKGROUND_METHODS

        async def call(request: Any, timeout: float | None = None) -> T:  # noqa: ASYNC109 - grpc.aio's argument
            with client_span(path, self._address) if is_traced else nullcontext():
                try:
                    async with asyncio.timeout(timeout):
                        return response_deserializer(await self._only(headers(), request_serializer(request)))
                except TimeoutError:
                    raise rpc_error(Status(Code.DEADLINE_EXCEEDED, "Deadline Exceeded")) from None

        return call

    def unary_stream(
        self, path: str, request_serializer: Serialize, response_deserializer: Deserialize[T], **_: Any
    ) -> Callable[..., LoopStream[T]]:
        """Return a function that makes a call with its one request, or those written later, and many responses."""
        headers = self._headers_of(path)
        return lambda *request: LoopStream(
            self, headers(), request_serializer, response_deserializer, *map(request_serializer, request)
        )

    stream_stream = unary_stream

    async def _only(self, headers: bytes, request: bytes) -> bytes:
        connection = await self.connected()
        try:
            call = connection.call(headers, request)
        except CallError as error:
            raise rpc_error(error.status) from error
        try:
            await call.sent()
            return await call.only()
        except CallError as error:
            raise raised(call, error) from error
        finally:
            call.cancel()

    def _headers_of(self, path: str) -> Callable[[], bytes]:
        """Return what gives the header block of a call of a method, with the trace context that is current."""
        scheme = "https" if self._identity else "http"
        fixed = fixed_block(request_headers(path, self._address, scheme, {}, None))

        def headers() -> bytes:
            if not is_tracing():
                return fixed
            carrier: dict[str, str] = {}
            propagate.inject(carrier)
            return fixed + fixed_block(carrier.items())

        return headers

    async def _connect(self, place: _Place) -> LoopConnection:
        if self._identity is None:
            return await connect(*place, limits=_LIMITS, timing=_TIMING)
        context, name = self._identity.client_context(), self._identity.server_name
        return await connect(*place, limits=_LIMITS, timing=_TIMING, tls=context, server_name=name)

    async def _connect_first(self) -> LoopConnection:
        """Return the first connection that is made, of several begun one after the other.

        Raises OSError if all that were begun have failed, or none was made in the time for one.
        """
        attempts: set[asyncio.Task[LoopConnection]] = set()
        try:
            async with asyncio.timeout(_TIMING.connect_seconds):
                for number in itertools.count():
                    places = await self._resolved()
                    place = places[self._first % len(places)]
                    self._first += 1
                    attempts.add(asyncio.create_task(self._connect(place)))
                    done, waiting = await asyncio.wait(
                        attempts, timeout=_STAGGER_SECONDS, return_when=asyncio.FIRST_COMPLETED
                    )
                    if made := [task for task in done if task.exception() is None]:
                        attempts.discard(made[0])
                        return made[0].result()
                    if done and not waiting and number + 1 >= len(places):
                        done.pop().result()
                    attempts -= done
            raise AssertionError("counting ended")
        finally:
            for task in attempts:
                if not task.cancel() and not task.exception():
                    task.result().shut_down(CANCELLED_HERE)

    async def _resolved(self) -> Sequence[_Place]:
        """Return the addresses of the hosts; the last known ones where a name is not found at once.

        A name server may be away with the process that is looked for. One question is asked at a time: each takes a
        thread for as long as it is not answered. Raises OSError if no address is known, and none is found.
        """
        if self._resolving is None:
            ask = asyncio.get_running_loop().getaddrinfo
            questions = (ask(*place, type=socket.SOCK_STREAM) for place in self._places)
            self._resolving = asyncio.ensure_future(asyncio.gather(*questions, return_exceptions=True))
        await asyncio.wait([self._resolving], timeout=_STAGGER_SECONDS if self._known else None)
        if self._resolving.done():
            answer, self._resolving = self._resolving, None
            failures = [each for each in answer.result() if isinstance(each, BaseException)]
            found = [each for each in answer.result() if not isinstance(each, BaseException)]
            self._known = [_Place(*entry[4][:2]) for entries in found for entry in entries] or self._known
            if not self._known:
                raise failures[0]
        return self._known


class _Place(NamedTuple):
    """Where a process listens."""

    host: str
    port: int


def _place(address: str) -> _Place:
    host, _, port = address.rpartition(":")
    if not host or not port.isascii() or not port.isdigit():
        raise ConfigurationError(f"expected host:port, got {address!r}")
    return _Place(host.strip("[]"), int(port))


class LoopStream(Generic[T]):
    """Begins with the first `read` or `write`; one task may read while another writes.

    `request` is the only one; None: any number, by `write`.
    """

    def __init__(
        self,
        channel: LoopChannel,
        headers: bytes,
        serialize: Callable[[Any], bytes],
        deserialize: Callable[[bytes], T],
        request: bytes | None = None,
    ) -> None:
        self._channel, self._headers = channel, headers
        self._serialize, self._deserialize = serialize, deserialize
        self._request = request
        self._beginning = asyncio.Lock()
        self._call: LoopCall | None = None
        self._is_cancelled = False

    async def read(self) -> T | object:
        """Return the next response; `grpc.aio.EOF` after the last.

        Raises:
            AioRpcError: How the call has failed.
            CancelledError: If this side has cancelled it, as grpc.aio has it.
        """
        call = self._call or await self._begun()
        try:
            data = await call.receive()
        except CallError as error:
            raise raised(call, error) from error
        return grpc.aio.EOF if data is None else self._deserialize(data)

    async def write(self, request: Any) -> None:
        """Send a request; raise AioRpcError if the call has failed, CancelledError if this side cancelled it."""
        call = self._call or await self._begun()
        try:
            await call.send(self._serialize(request))
        except CallError as error:
            raise raised(call, error) from error

    def cancel(self) -> None:
        """End the call, if it runs."""
        self._is_cancelled = True
        if self._call is not None:
            self._call.cancel()

    async def __aiter__(self) -> AsyncIterator[T]:
        while (response := await self.read()) is not grpc.aio.EOF:
            yield response  # type: ignore[misc] # what is not EOF is a response

    async def _begun(self) -> LoopCall:
        async with self._beginning:
            if self._call is None:
                connection = await self._channel.connected()
                if self._is_cancelled:
                    raise asyncio.CancelledError("the call was cancelled")
                try:
                    self._call = connection.call(self._headers, self._request)
                except CallError as error:
                    raise rpc_error(error.status) from error
        await self._call.sent()
        return self._call


@contextmanager
def client_span(
    method: str, address: str, name: str = "", attributes: Mapping[str, AttributeValue] | None = None
) -> Iterator[None]:
    """Make the span of a call at its client current; what is raised says how the call has ended.

    `address` is host:port, `method` e.g. "/baton.internal.v1.RouterService/Place"; an empty `name` is the method's.
    """
    if not is_tracing():
        yield
        return
    known = {**rpc_attributes(method, address), **(attributes or {})}
    with span(name or method.removeprefix("/"), trace.SpanKind.CLIENT, known) as current:
        try:
            yield
        except BaseException as error:
            note_status(current, *status_of(error), kind=trace.SpanKind.CLIENT)
            raise
        note_status(current, grpc.StatusCode.OK, kind=trace.SpanKind.CLIENT)


def raised(call: LoopCall, error: CallError) -> BaseException:
    """Return what grpc.aio would raise for a call that ended so."""
    if call.status is CANCELLED_HERE:
        return asyncio.CancelledError("the call was cancelled by this side")
    return rpc_error(error.status)


def rpc_error(status: Status) -> grpc.aio.AioRpcError:
    """Return the error by which grpc.aio tells of a status."""
    trailers = grpc.aio.Metadata(*([(DETAILS_KEY, status.details)] if status.details else []))
    return grpc.aio.AioRpcError(_CODES[int(status.code)], grpc.aio.Metadata(), trailers, status.message)


def _take_failure(connecting: asyncio.Task[LoopConnection]) -> None:
    """Look at what became of a connection for which nobody waits any more."""
    if not connecting.cancelled():
        connecting.exception()
