"""baton.v1.DecodeService over a generator."""

from __future__ import annotations

import grpc

from baton.decode.generation import Generator
from baton.v1 import decode_service_pb2 as messages
from baton.v1 import decode_service_pb2_grpc as service


class DecodeServicer(service.DecodeServiceServicer):
    """Serves generations."""

    def __init__(self, generator: Generator) -> None:
        self._generator = generator

    async def Generate(  # noqa: N802
        self,
        request: messages.DecodeServiceGenerateRequest,
        context: grpc.aio.ServicerContext[
            messages.DecodeServiceGenerateRequest, messages.DecodeServiceGenerateResponse
        ],
    ) -> None:
        """Stream a generation."""
        await self._generator.run(request, context.write)
