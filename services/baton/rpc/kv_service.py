"""Both ends of PrefillService with frames that pass around protobuf; otherwise as generated."""

from __future__ import annotations

from typing import Any

import grpc

from baton.rpc.frame_codec import parse_response, serialize_response
from baton.v1 import prefill_service_pb2 as messages
from baton.v1.prefill_service_pb2_grpc import PrefillServiceServicer, PrefillServiceStub

SERVICE_NAME = messages.DESCRIPTOR.services_by_name["PrefillService"].full_name
PREFILL_PATH = f"/{SERVICE_NAME}/Prefill"
"""Path of the rpc, as HTTP/2 has it."""


class KvStub(PrefillServiceStub):
    """Calls PrefillService; `Prefill` yields `PrefillResponse`s and, for frames, `ReceivedFrame`s."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        super().__init__(channel)  # type: ignore[no-untyped-call]
        self.Prefill = channel.unary_stream(
            PREFILL_PATH,
            request_serializer=messages.PrefillRequest.SerializeToString,
            response_deserializer=parse_response,
        )


def add_prefill_service(servicer: PrefillServiceServicer, server: grpc.aio.Server) -> None:
    """Add a servicer whose `Prefill` yields `PrefillResponse`s and, for frames, `EncodedFrame`s."""
    handlers: dict[str, Any] = {
        "Prefill": grpc.unary_stream_rpc_method_handler(
            servicer.Prefill,
            request_deserializer=messages.PrefillRequest.FromString,
            response_serializer=serialize_response,
        ),
        "ProbeLink": grpc.unary_stream_rpc_method_handler(
            servicer.ProbeLink,
            request_deserializer=messages.ProbeLinkRequest.FromString,
            response_serializer=messages.ProbeLinkResponse.SerializeToString,
        ),
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE_NAME, handlers),))
