"""baton.v1.PrefillService over a prefiller."""

from __future__ import annotations

from collections.abc import AsyncIterator

import grpc

from baton.prefill.messages import Message
from baton.prefill.prefiller import Prefiller
from baton.rpc.kv_service import ReceivedRequest
from baton.v1 import prefill_service_pb2 as messages
from baton.v1 import prefill_service_pb2_grpc as service
from baton.worker.probe import probe_sizes


class PrefillServicer(service.PrefillServiceServicer):
    """Serves prefills and link probes."""

    def __init__(self, prefiller: Prefiller) -> None:
        self._prefiller = prefiller

    async def Prefill(  # noqa: N802
        self,
        request: ReceivedRequest,
        context: grpc.aio.ServicerContext[ReceivedRequest, Message],  # noqa: ARG002
    ) -> AsyncIterator[Message]:
        """Stream a prompt's KV; frames as `baton.rpc.frame_codec` encodes them."""
        async for response in self._prefiller.run(request):
            yield response

    async def ProbeLink(  # noqa: N802
        self,
        request: messages.ProbeLinkRequest,
        context: grpc.aio.ServicerContext[messages.ProbeLinkRequest, messages.ProbeLinkResponse],  # noqa: ARG002
    ) -> AsyncIterator[messages.ProbeLinkResponse]:
        """Send bytes."""
        for num_bytes in probe_sizes(request.byte_count, request.message_byte_count):
            yield messages.ProbeLinkResponse(payload=bytes(num_bytes))
