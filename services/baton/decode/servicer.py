"""baton.v1.DecodeService over a generator."""

from __future__ import annotations

from collections.abc import AsyncIterator

import grpc

from baton.decode.generation import Generator
from baton.decode.serve_call import ServeCall
from baton.decode.single_stream import generate_alone
from baton.v1 import decode_service_pb2 as messages
from baton.v1 import decode_service_pb2_grpc as service


class DecodeServicer(service.DecodeServiceServicer):
    """Serves generations, alone or many in one call."""

    def __init__(self, generator: Generator) -> None:
        self.generator = generator
        self._calls: set[ServeCall] = set()

    async def Generate(  # noqa: N802
        self,
        request: messages.DecodeServiceGenerateRequest,
        context: grpc.aio.ServicerContext[
            messages.DecodeServiceGenerateRequest, messages.DecodeServiceGenerateResponse
        ],
    ) -> None:
        """Stream a generation."""
        await generate_alone(self.generator, request, context.write)

    async def Serve(  # noqa: N802
        self,
        request_iterator: AsyncIterator[messages.ServeRequest],
        context: grpc.aio.ServicerContext[messages.ServeRequest, messages.ServeResponse],
    ) -> None:
        """Stream many generations."""
        await context.send_initial_metadata(())  # else a call could not be ended while its first message is written
        call = ServeCall(self.generator)
        self._calls.add(call)
        try:
            await call.run(request_iterator, context.write)
        finally:
            self._calls.discard(call)

    def drain(self) -> None:
        """Let calls end after their last stream: their gateways keep them open for more."""
        for call in self._calls:
            call.drain()
