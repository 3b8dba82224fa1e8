"""baton.v1.BlockService: hands cached blocks out by hash. Nothing is computed, and nothing held between two frames."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import closing
from typing import TypeAlias

import grpc

from baton.rpc.block_service import ReceivedPull
from baton.rpc.frame_codec import EncodedFrame
from baton.v1 import block_service_pb2
from baton.v1.block_service_pb2_grpc import BlockServiceServicer
from baton.worker.block_stream import BlockStream, CachingNode
from baton.worker.probe import probe_sizes

Message = block_service_pb2.PullBlocksResponse | EncodedFrame
"""What is sent."""
ProbeRequest: TypeAlias = block_service_pb2.BlockServiceProbeLinkRequest
ProbeResponse: TypeAlias = block_service_pb2.BlockServiceProbeLinkResponse


class BlockServicer(BlockServiceServicer):
    """Serves the prefix cache of a node by the gRPC library.

    Args:
        node: Whose cache.
    """

    def __init__(self, node: CachingNode) -> None:
        self._node = node

    async def PullBlocks(  # noqa: N802
        self,
        request: ReceivedPull,
        context: grpc.aio.ServicerContext[ReceivedPull, Message],  # noqa: ARG002
    ) -> AsyncIterator[Message]:
        """Stream the leading blocks that are cached; frames as `baton.rpc.frame_codec` encodes them."""
        stream = BlockStream(self._node, request)
        yield stream.layout(await asyncio.wrap_future(stream.matched()))
        with closing(stream.readings()) as readings:
            for reading in readings:
                await asyncio.wrap_future(reading.kvs)
                yield await asyncio.to_thread(stream.frame, reading)
        yield stream.summary()

    async def ProbeLink(  # noqa: N802
        self,
        request: ProbeRequest,
        context: grpc.aio.ServicerContext[ProbeRequest, ProbeResponse],  # noqa: ARG002
    ) -> AsyncIterator[ProbeResponse]:
        """Send bytes."""
        for num_bytes in probe_sizes(request.byte_count, request.message_byte_count):
            yield ProbeResponse(payload=bytes(num_bytes))
