"""Both ends of PrefillService and BlockService with frames that pass around protobuf; otherwise as generated.

On the fast path, Prefill is served on threads of `grpc_sockets`, with errors and spans as everywhere.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterator
from contextlib import nullcontext
from functools import cache
from typing import Any, Generic, NamedTuple, TypeVar

import grpc
from google.protobuf.message import DecodeError
from opentelemetry import trace

from baton.errors import BatonError, ConfigurationError, InvalidFieldError
from baton.grpc_sockets.flow_control import StreamEndedError
from baton.grpc_sockets.headers import CallError, Code
from baton.grpc_sockets.limits import Limits
from baton.grpc_sockets.server import GrpcSocketServer
from baton.grpc_sockets.server_connection import ServerCall
from baton.internal.v1 import block_service_pb2, prefill_service_pb2
from baton.internal.v1.block_service_pb2_grpc import BlockServiceServicer, BlockServiceStub
from baton.internal.v1.prefill_service_pb2_grpc import PrefillServiceServicer, PrefillServiceStub
from baton.kv_transport.frame_codec import (
    Request,
    parse_pull_response,
    parse_response,
    request_crc32c,
    serialize_request,
    serialize_response,
)
from baton.kv_transport.link_probe import probe_sizes, probe_turn
from baton.rpc.error_interceptor import tolerant
from baton.rpc.server import host_port
from baton.rpc.status import code_of, details_of
from baton.security.access import DEPLOYMENT, caller_of, current_caller, set_caller
from baton.security.tls import TlsIdentity, current_identity, identity_towards
from baton.telemetry import names
from baton.telemetry.tracing import named_address, note_status, rpc_attributes, span

log = logging.getLogger(__name__)
_RequestT = TypeVar("_RequestT")

_LIMITS = Limits(message_bytes=16 << 20, num_streams=256)
"""Requests hold token ids, about 3 bytes each; every call that runs has a thread."""

PREFILL_SERVICE_NAME = prefill_service_pb2.DESCRIPTOR.services_by_name["PrefillService"].full_name
PREFILL_PATH, PROBE_PATH = f"/{PREFILL_SERVICE_NAME}/Prefill", f"/{PREFILL_SERVICE_NAME}/ProbeLink"
"""Paths of the rpcs, as HTTP/2 has them."""
BLOCK_SERVICE_NAME = block_service_pb2.DESCRIPTOR.services_by_name["BlockService"].full_name
PULL_PATH = f"/{BLOCK_SERVICE_NAME}/PullBlocks"


class Received(NamedTuple, Generic[Request]):
    """A request as a node got it."""

    message: Request
    crc32c: int
    """Checksum of its bytes: the key of the stream that answers it."""


ReceivedRequest = Received[prefill_service_pb2.PrefillRequest]
ReceivedPull = Received[block_service_pb2.PullBlocksRequest]


def parse_request(data: bytes) -> ReceivedRequest:
    """Return the request for a prompt's KV of some bytes; raise protobuf's DecodeError if they are none."""
    return Received(prefill_service_pb2.PrefillRequest.FromString(data), request_crc32c(data))


def parse_pull(data: bytes) -> ReceivedPull:
    """Return the request for a node's blocks of some bytes; raise protobuf's DecodeError if they are none."""
    return Received(block_service_pb2.PullBlocksRequest.FromString(data), request_crc32c(data))


class KvStub(PrefillServiceStub):
    """Calls PrefillService; `Prefill` yields `PrefillResponse`s, `ReceivedFrame`s, or `Undecodable` for neither."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        super().__init__(channel)  # type: ignore[no-untyped-call]
        self.Prefill = _receiving(channel, PREFILL_PATH, parse_response)
        self.probe = _prober(self.ProbeLink, prefill_service_pb2.ProbeLinkRequest)


class BlockStub(BlockServiceStub):
    """Calls BlockService; `PullBlocks` yields `PullBlocksResponse`s, `ReceivedFrame`s, or `Undecodable` for neither."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        super().__init__(channel)  # type: ignore[no-untyped-call]
        self.PullBlocks = _receiving(channel, PULL_PATH, parse_pull_response)
        self.probe = _prober(self.ProbeLink, block_service_pb2.BlockServiceProbeLinkRequest)


def _receiving(channel: grpc.aio.Channel, path: str, parse: Callable[[bytes], Any]) -> Any:
    """Return an rpc that streams frames."""
    return channel.unary_stream(path, request_serializer=serialize_request, response_deserializer=tolerant(parse))


def _prober(call: Any, request: Callable[..., Any]) -> Callable[[int, float], AsyncIterable[object]]:
    """Return what calls `ProbeLink` for so many bytes, within so many seconds."""
    return lambda num_bytes, timeout_seconds: call(request(byte_count=num_bytes), timeout=timeout_seconds)


def add_prefill_service(servicer: PrefillServiceServicer, server: grpc.aio.Server) -> None:
    """Add a servicer; its `Prefill` takes a `ReceivedRequest`, yields `PrefillResponse`s, and `EncodedFrame`s."""
    _add(server, PREFILL_SERVICE_NAME, "Prefill", servicer.Prefill, parse_request)


def add_block_service(servicer: BlockServiceServicer, server: grpc.aio.Server) -> None:
    """Add a servicer; its `PullBlocks` takes a `ReceivedPull`, yields `PullBlocksResponse`s, and `EncodedFrame`s."""
    _add(server, BLOCK_SERVICE_NAME, "PullBlocks", servicer.PullBlocks, parse_pull)


def _add(server: grpc.aio.Server, name: str, method: str, behavior: Any, parse: Callable[[bytes], Any]) -> None:
    """Add a service: what streams frames, and `ProbeLink`, whose messages are the same on the wire in both."""
    make: Any = grpc.unary_stream_rpc_method_handler
    parse_probe = prefill_service_pb2.ProbeLinkRequest.FromString
    handlers = {"ProbeLink": make(_answer_probe, parse_probe, bytes), method: make(behavior, parse, serialize_response)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(name, handlers),))


class FastServer:
    """Serves prefills, by TLS where the context has an identity. Use: construct, `start`, then `drain` once.

    `serve`, in a thread of the call's own, sends the messages of a prompt's KV stream; it raises BatonError if the
    request is refused or fails. `advertised` returns host:port under which other nodes reach a port of this one.
    """

    def __init__(
        self,
        host: str,
        port: int,
        serve: Callable[[ReceivedRequest, ServerCall], None],
        *,
        advertised: Callable[[int], str] | None = None,
    ) -> None:
        self.advertised_address = ""
        """host:port under which other nodes reach it; empty before `start`."""
        self._advertised = advertised or (lambda port: host_port(host, port))
        self._host = host
        self._wanted_port = self._port = port
        self._serve = serve
        self._identity = current_identity()
        self._servers = [self._made(host, port, identity_towards(host_port(host, port)))]

    def _made(self, host: str, port: int, identity: TlsIdentity | None) -> GrpcSocketServer:
        server_name = identity.server_name if identity else DEPLOYMENT
        serve, address = self._serve, named_address(host_port(host, port))
        prefill = _guarded(lambda call: serve(_read(parse_request, call), call), address, server_name)
        return GrpcSocketServer(
            host,
            port,
            {PREFILL_PATH: prefill, PROBE_PATH: _guarded(_send_probe, address, server_name)},
            limits=_LIMITS,
            tls=identity.server_context if identity else None,
        )

    def start(self) -> int:
        """Bind and serve; return the port. Raises ConfigurationError if the address cannot be bound."""
        try:
            port = self._port = self._servers[0].start()
        except OSError as error:
            raise ConfigurationError(
                f"fast_port: cannot listen on {self._host}:{self._wanted_port}: {error}"
            ) from error
        self.advertised_address = self._advertised(port)
        log.info("fast_path_listening address=%s port=%d", self._host, port)
        return port

    async def drain(self, grace_seconds: float) -> None:
        """Refuse new calls, wait for running ones, cut those that outlast the grace."""
        await asyncio.gather(*(asyncio.to_thread(each.drain, grace_seconds) for each in self._servers))

    async def open_outside(self) -> None:
        """Serve beyond loopback too, on the same port and by TLS, from when that is opened, if it ever can be."""
        if self._identity is None or self._identity.lan_file is None:
            return
        host = await self._identity.opened()
        outside = self._made(host, self._port, self._identity)
        try:
            outside.start()
        except OSError as error:
            log.warning("fast_path_not_opened host=%s port=%d cause=%r", host, self._port, str(error))
            return
        self._servers.append(outside)


def _guarded(answer: Callable[[ServerCall], None], address: str, server_name: str) -> Callable[[ServerCall], None]:
    def serve(call: ServerCall) -> None:
        carrier = {key: value for key, value in call.metadata.items() if isinstance(value, str)}
        attributes = {**rpc_attributes(call.path, address), names.KV_TRANSPORT: "fast"}
        traced = span(call.path.removeprefix("/"), trace.SpanKind.SERVER, attributes, carrier)
        with nullcontext(trace.INVALID_SPAN) if call.path in names.BACKGROUND_METHODS else traced as current:
            try:
                if call.peer_names is not None:
                    set_caller(caller_of(call.peer_names, server_name=server_name))
                    current_caller().check_may_call(call.path)
                answer(call)
            except (StreamEndedError, TimeoutError):  # of the call itself
                note_status(current, grpc.StatusCode.CANCELLED)
                raise
            except Exception as error:  # the edge of the call
                told = error if isinstance(error, BatonError) else _internal(error)
                note_status(current, code_of(told), told.message)
                raise CallError(Code(code_of(told).value[0]), told.message, details_of(told)) from error
            note_status(current, grpc.StatusCode.OK)

    return serve


def _internal(error: Exception) -> BatonError:
    log.exception("call_failed")
    return BatonError(f"internal error: {type(error).__name__}")


def _probe_messages(request: prefill_service_pb2.ProbeLinkRequest) -> Iterator[bytes]:
    response = prefill_service_pb2.ProbeLinkResponse
    message = cache(lambda num_bytes: response(payload=bytes(num_bytes)).SerializeToString())
    return map(message, probe_sizes(request.byte_count, request.message_byte_count))


async def _answer_probe(request: prefill_service_pb2.ProbeLinkRequest, _context: object) -> AsyncIterator[bytes]:
    with probe_turn(request.byte_count):
        for message in _probe_messages(request):
            yield message


def _send_probe(call: ServerCall) -> None:
    request = _read(prefill_service_pb2.ProbeLinkRequest.FromString, call)
    with probe_turn(request.byte_count):
        for message in _probe_messages(request):
            call.send(message)


def _read(parse: Callable[[bytes], _RequestT], call: ServerCall) -> _RequestT:
    try:
        return parse(call.request)
    except DecodeError as error:
        raise InvalidFieldError("request", str(error)) from error
