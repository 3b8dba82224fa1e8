"""Both ends of PrefillService with frames that pass around protobuf; otherwise as generated."""

from __future__ import annotations

from collections.abc import AsyncIterable
from typing import Any, NamedTuple, cast

import crc32c
import grpc

from baton.kv_transport.frame_codec import parse_response, serialize_response
from baton.rpc.error_interceptor import tolerant
from baton.v1 import prefill_service_pb2 as messages
from baton.v1.prefill_service_pb2_grpc import PrefillServiceServicer, PrefillServiceStub

SERVICE_NAME = messages.DESCRIPTOR.services_by_name["PrefillService"].full_name
PREFILL_PATH = f"/{SERVICE_NAME}/Prefill"
"""Path of the rpc, as HTTP/2 has it."""


class ReceivedRequest(NamedTuple):
    """A request as a node got it."""

    message: messages.PrefillRequest
    """The request."""
    crc32c: int
    """Checksum of its bytes: the key of the stream that answers it."""


def serialize_request(request: messages.PrefillRequest) -> bytes:
    """Return the bytes of a request, always the same for the same request."""
    return request.SerializeToString(deterministic=True)


def parse_request(data: bytes) -> ReceivedRequest:
    """Return the request of some bytes.

    Raises:
        google.protobuf.message.DecodeError: If they are none.
    """
    return ReceivedRequest(messages.PrefillRequest.FromString(data), request_crc32c(data))


def request_crc32c(data: bytes) -> int:
    """Return the checksum of a request's bytes."""
    return int(crc32c.crc32c(data))


class KvStub(PrefillServiceStub):
    """Calls PrefillService; `Prefill` yields `PrefillResponse`s, `ReceivedFrame`s, or `Undecodable` for neither."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        super().__init__(channel)  # type: ignore[no-untyped-call]
        self.Prefill = channel.unary_stream(
            PREFILL_PATH,
            request_serializer=serialize_request,
            response_deserializer=tolerant(parse_response),
        )

    def probe(self, num_bytes: int, timeout_seconds: float) -> AsyncIterable[object]:
        """Call `ProbeLink`."""
        request = messages.ProbeLinkRequest(byte_count=num_bytes)
        return cast("AsyncIterable[object]", self.ProbeLink(request, timeout=timeout_seconds))


def add_prefill_service(servicer: PrefillServiceServicer, server: grpc.aio.Server) -> None:
    """Add a servicer; its `Prefill` takes a `ReceivedRequest`, yields `PrefillResponse`s, and `EncodedFrame`s."""
    handlers: dict[str, Any] = {
        "Prefill": grpc.unary_stream_rpc_method_handler(
            servicer.Prefill,
            request_deserializer=parse_request,
            response_serializer=serialize_response,
        ),
        "ProbeLink": grpc.unary_stream_rpc_method_handler(
            servicer.ProbeLink,
            request_deserializer=messages.ProbeLinkRequest.FromString,
            response_serializer=messages.ProbeLinkResponse.SerializeToString,
        ),
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE_NAME, handlers),))
