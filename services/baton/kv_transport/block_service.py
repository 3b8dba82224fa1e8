"""Both ends of BlockService with frames that pass around protobuf; otherwise as generated."""

from __future__ import annotations

from collections.abc import AsyncIterable
from typing import Any, NamedTuple, cast

import crc32c
import grpc

from baton.kv_transport.frame_codec import parse_pull_response, serialize_response
from baton.rpc.error_interceptor import tolerant
from baton.v1 import block_service_pb2 as messages
from baton.v1.block_service_pb2_grpc import BlockServiceServicer, BlockServiceStub

SERVICE_NAME = messages.DESCRIPTOR.services_by_name["BlockService"].full_name
_PULL_PATH = f"/{SERVICE_NAME}/PullBlocks"


class ReceivedPull(NamedTuple):
    """A request as a node got it."""

    message: messages.PullBlocksRequest
    """The request."""
    crc32c: int
    """Checksum of its bytes: the key of the stream that answers it."""


def serialize_pull(request: messages.PullBlocksRequest) -> bytes:
    """Return the bytes of a request, always the same for the same request."""
    return request.SerializeToString(deterministic=True)


def parse_pull(data: bytes) -> ReceivedPull:
    """Return the request of some bytes.

    Raises:
        google.protobuf.message.DecodeError: If they are none.
    """
    return ReceivedPull(messages.PullBlocksRequest.FromString(data), int(crc32c.crc32c(data)))


class BlockStub(BlockServiceStub):
    """Calls BlockService; `PullBlocks` yields `PullBlocksResponse`s, `ReceivedFrame`s, or `Undecodable` for neither."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        super().__init__(channel)  # type: ignore[no-untyped-call]
        self.PullBlocks = channel.unary_stream(
            _PULL_PATH,
            request_serializer=serialize_pull,
            response_deserializer=tolerant(parse_pull_response),
        )

    def probe(self, num_bytes: int, timeout_seconds: float) -> AsyncIterable[object]:
        """Call `ProbeLink`."""
        request = messages.BlockServiceProbeLinkRequest(byte_count=num_bytes)
        return cast("AsyncIterable[object]", self.ProbeLink(request, timeout=timeout_seconds))


def add_block_service(servicer: BlockServiceServicer, server: grpc.aio.Server) -> None:
    """Add a servicer; its `PullBlocks` takes a `ReceivedPull`, yields `PullBlocksResponse`s, and `EncodedFrame`s."""
    handlers: dict[str, Any] = {
        "PullBlocks": grpc.unary_stream_rpc_method_handler(
            servicer.PullBlocks,
            request_deserializer=parse_pull,
            response_serializer=serialize_response,
        ),
        "ProbeLink": grpc.unary_stream_rpc_method_handler(
            servicer.ProbeLink,
            request_deserializer=messages.BlockServiceProbeLinkRequest.FromString,
            response_serializer=messages.BlockServiceProbeLinkResponse.SerializeToString,
        ),
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE_NAME, handlers),))
