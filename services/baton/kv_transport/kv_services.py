"""Both ends of PrefillService and BlockService with frames that pass around protobuf; otherwise as generated."""

from __future__ import annotations

from collections.abc import AsyncIterable, Callable
from typing import Any, Generic, NamedTuple, cast

import grpc

from baton.kv_transport.frame_codec import (
    Request,
    parse_pull_response,
    parse_response,
    request_crc32c,
    serialize_request,
    serialize_response,
)
from baton.rpc.error_interceptor import tolerant
from baton.v1 import block_service_pb2, prefill_service_pb2
from baton.v1.block_service_pb2_grpc import BlockServiceServicer, BlockServiceStub
from baton.v1.prefill_service_pb2_grpc import PrefillServiceServicer, PrefillServiceStub

PREFILL_SERVICE_NAME = prefill_service_pb2.DESCRIPTOR.services_by_name["PrefillService"].full_name
PREFILL_PATH = f"/{PREFILL_SERVICE_NAME}/Prefill"
"""Path of the rpc, as HTTP/2 has it."""
BLOCK_SERVICE_NAME = block_service_pb2.DESCRIPTOR.services_by_name["BlockService"].full_name


class Received(NamedTuple, Generic[Request]):
    """A request as a node got it."""

    message: Request
    """The request."""
    crc32c: int
    """Checksum of its bytes: the key of the stream that answers it."""


ReceivedRequest = Received[prefill_service_pb2.PrefillRequest]
ReceivedPull = Received[block_service_pb2.PullBlocksRequest]


def parse_request(data: bytes) -> ReceivedRequest:
    """Return the request for a prompt's KV of some bytes.

    Raises:
        google.protobuf.message.DecodeError: If they are none.
    """
    return Received(prefill_service_pb2.PrefillRequest.FromString(data), request_crc32c(data))


def parse_pull(data: bytes) -> ReceivedPull:
    """Return the request for a node's blocks of some bytes.

    Raises:
        google.protobuf.message.DecodeError: If they are none.
    """
    return Received(block_service_pb2.PullBlocksRequest.FromString(data), request_crc32c(data))


class KvStub(PrefillServiceStub):
    """Calls PrefillService; `Prefill` yields `PrefillResponse`s, `ReceivedFrame`s, or `Undecodable` for neither."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        super().__init__(channel)  # type: ignore[no-untyped-call]
        self.Prefill = channel.unary_stream(
            PREFILL_PATH, request_serializer=serialize_request, response_deserializer=tolerant(parse_response)
        )

    def probe(self, num_bytes: int, timeout_seconds: float) -> AsyncIterable[object]:
        """Call `ProbeLink`."""
        request = prefill_service_pb2.ProbeLinkRequest(byte_count=num_bytes)
        return cast("AsyncIterable[object]", self.ProbeLink(request, timeout=timeout_seconds))


class BlockStub(BlockServiceStub):
    """Calls BlockService; `PullBlocks` yields `PullBlocksResponse`s, `ReceivedFrame`s, or `Undecodable` for neither."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        super().__init__(channel)  # type: ignore[no-untyped-call]
        self.PullBlocks = channel.unary_stream(
            f"/{BLOCK_SERVICE_NAME}/PullBlocks",
            request_serializer=serialize_request,
            response_deserializer=tolerant(parse_pull_response),
        )

    def probe(self, num_bytes: int, timeout_seconds: float) -> AsyncIterable[object]:
        """Call `ProbeLink`."""
        request = block_service_pb2.BlockServiceProbeLinkRequest(byte_count=num_bytes)
        return cast("AsyncIterable[object]", self.ProbeLink(request, timeout=timeout_seconds))


def add_prefill_service(servicer: PrefillServiceServicer, server: grpc.aio.Server) -> None:
    """Add a servicer; its `Prefill` takes a `ReceivedRequest`, yields `PrefillResponse`s, and `EncodedFrame`s."""
    probe = prefill_service_pb2.ProbeLinkRequest, prefill_service_pb2.ProbeLinkResponse
    handlers = {
        "Prefill": _streaming(servicer.Prefill, parse_request, serialize_response),
        "ProbeLink": _streaming(servicer.ProbeLink, probe[0].FromString, probe[1].SerializeToString),
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(PREFILL_SERVICE_NAME, handlers),))


def add_block_service(servicer: BlockServiceServicer, server: grpc.aio.Server) -> None:
    """Add a servicer; its `PullBlocks` takes a `ReceivedPull`, yields `PullBlocksResponse`s, and `EncodedFrame`s."""
    probe = block_service_pb2.BlockServiceProbeLinkRequest, block_service_pb2.BlockServiceProbeLinkResponse
    handlers = {
        "PullBlocks": _streaming(servicer.PullBlocks, parse_pull, serialize_response),
        "ProbeLink": _streaming(servicer.ProbeLink, probe[0].FromString, probe[1].SerializeToString),
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(BLOCK_SERVICE_NAME, handlers),))


def _streaming(
    behavior: Callable[..., Any], deserialize: Callable[[bytes], Any], serialize: Callable[[Any], bytes]
) -> Any:
    return grpc.unary_stream_rpc_method_handler(
        behavior, request_deserializer=deserialize, response_serializer=serialize
    )
