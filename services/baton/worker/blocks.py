"""baton.v1.BlockService: hands cached blocks out by hash. Nothing is computed, and nothing held between two frames."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from typing import Any, Protocol, TypeAlias, TypeVar

import grpc

from baton.capacity.pull import FRAME_TOKENS, MAX_FRAME_BYTES
from baton.engine.engine import Engine
from baton.engine.kv_exchange import read_blocks
from baton.engine.runners.base import LayerKv, Runner
from baton.errors import InvalidFieldError, MismatchError
from baton.kv.hashing import BlockHash, split_hashes
from baton.kv.layout import KvLayout
from baton.kv.packing import pack_frame
from baton.kv.progress import KvProgress
from baton.kv.stream import KvFrame, StreamLedger, frame_groups, header_crc32c
from baton.rpc.block_service import ReceivedPull
from baton.rpc.frame_codec import EncodedFrame, encode_frame, totals_to_proto
from baton.rpc.wire_kv import layout_from_proto, layout_to_proto, wire_from_proto
from baton.v1 import block_service_pb2, kv_pb2
from baton.v1.block_service_pb2_grpc import BlockServiceServicer
from baton.worker.identity import check_identity
from baton.worker.probe import probe_sizes

Message = block_service_pb2.PullBlocksResponse | EncodedFrame
"""What is sent."""
ProbeRequest: TypeAlias = block_service_pb2.BlockServiceProbeLinkRequest
ProbeResponse: TypeAlias = block_service_pb2.BlockServiceProbeLinkResponse
_T = TypeVar("_T")


class CachingNode(Protocol):
    """This node, as far as it has a prefix cache; `baton.worker.node.WorkerNode` is one."""

    engine: Engine
    runner: Runner
    is_kv_quantized: bool

    def check_accepts(self) -> None:
        """Refuse new work while the node shuts down."""


class BlockServicer(BlockServiceServicer):
    """Serves the prefix cache of a node.

    A frame's blocks are looked up, referenced and read in one turn of the engine's thread, when the frame before has
    been taken by the network: so no stream keeps blocks from running requests, none can leak, and what has been evicted
    meanwhile is noticed.

    Args:
        node: Whose cache.
    """

    def __init__(self, node: CachingNode) -> None:
        self._node = node
        self._layout = node.runner.info.layout

    async def PullBlocks(  # noqa: N802
        self,
        request: ReceivedPull,
        context: grpc.aio.ServicerContext[ReceivedPull, Message],  # noqa: ARG002
    ) -> AsyncIterator[Message]:
        """Stream the leading blocks that are cached; frames as `baton.rpc.frame_codec` encodes them."""
        arrived = time.perf_counter()
        self._node.check_accepts()
        if self._node.is_kv_quantized:
            raise MismatchError("kv_quantization", "rounded KV, which is not for others", "a request for it")
        message = request.message
        hashes = self._check(message)
        layout = replace(self._layout, wire=wire_from_proto(message, self._layout))
        pool, block_tokens = self._node.engine.scheduler.pool, self._node.runner.block_tokens
        num_blocks = await self._ask(lambda: len(pool.match(hashes)))
        begin = message.block_begin * block_tokens
        owed = KvProgress.begin(layout, begin, begin + num_blocks * block_tokens)
        ledger = StreamLedger(layout, owed, request.crc32c)
        yield block_service_pb2.PullBlocksResponse(
            layout=layout_to_proto(layout), request_crc32c=request.crc32c, block_count=num_blocks
        )
        async for frame in self._frames(message, hashes[:num_blocks], layout):
            stamped = replace(frame, ready_seconds=time.perf_counter() - arrived)
            number, crc = ledger.append(stamped)
            yield encode_frame(stamped, number, crc, header_crc32c(request.crc32c, number, stamped, crc))
        yield block_service_pb2.PullBlocksResponse(summary=_summary(ledger, num_blocks * block_tokens))

    async def ProbeLink(  # noqa: N802
        self,
        request: ProbeRequest,
        context: grpc.aio.ServicerContext[ProbeRequest, ProbeResponse],  # noqa: ARG002
    ) -> AsyncIterator[ProbeResponse]:
        """Send bytes."""
        for num_bytes in probe_sizes(request.byte_count, request.message_byte_count):
            yield ProbeResponse(payload=bytes(num_bytes))

    def _check(self, message: block_service_pb2.PullBlocksRequest) -> list[BlockHash]:
        """Return the hashes of a request that can be served.

        Raises:
            BatonError: If it cannot; the field is named.
        """
        check_identity(message.request_id, message.attempt, "")
        self._layout.check_matches(layout_from_proto(message.expected_layout, field="expected_layout"))
        block_tokens = self._node.runner.block_tokens
        if message.block_token_count != block_tokens:
            raise MismatchError("block_token_count", block_tokens, message.block_token_count)
        for name in ("block_begin", "layers_per_frame"):
            if getattr(message, name) < 0:
                raise InvalidFieldError(name, f"expected 0 or more, got {getattr(message, name)}")
        try:
            hashes = split_hashes(message.block_hashes)
        except ValueError as error:
            raise InvalidFieldError("block_hashes", str(error)) from None
        if not hashes:
            raise InvalidFieldError("block_hashes", "expected 1 hash or more")
        max_blocks = self._node.runner.info.max_context_tokens // block_tokens
        if message.block_begin + len(hashes) > max_blocks:
            raise InvalidFieldError("block_begin", f"expected blocks up to {max_blocks}, the end of the context")
        return hashes

    async def _frames(
        self, message: block_service_pb2.PullBlocksRequest, hashes: list[BlockHash], layout: KvLayout
    ) -> AsyncIterator[KvFrame]:
        block_tokens = self._node.runner.block_tokens
        num_chunk_blocks = max(1, FRAME_TOKENS // block_tokens)
        loop, codec = asyncio.get_running_loop(), self._node.runner.wire_codec
        for start in range(0, len(hashes), num_chunk_blocks):
            chunk = hashes[start : start + num_chunk_blocks]
            for group in frame_groups(layout, self._layers_per_frame(message, len(chunk))):
                kvs = await self._read(chunk, group)
                frame = _joined(kvs, group, (message.block_begin + start) * block_tokens, len(chunk) * block_tokens)
                if not layout.is_wire_lossless:
                    frame = await loop.run_in_executor(None, pack_frame, codec, layout, frame)
                yield frame

    def _layers_per_frame(self, message: block_service_pb2.PullBlocksRequest, num_blocks: int) -> int:
        num_elements = max(spec.num_token_elements for spec in self._layout.layers)
        layer_bytes = num_elements * self._layout.dtype.num_bytes * num_blocks * self._node.runner.block_tokens
        return max(1, min(message.layers_per_frame, MAX_FRAME_BYTES // layer_bytes))

    async def _read(self, hashes: Sequence[BlockHash], layers: range) -> list[LayerKv]:
        runner, pool = self._node.runner, self._node.engine.scheduler.pool
        return await self._ask(lambda: read_blocks(runner, pool, hashes, layers))

    async def _ask(self, question: Callable[[], _T]) -> _T:
        """Return the answer of the engine's thread, or raise what it raised."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[_T] = loop.create_future()

        def run() -> None:
            result: _T | None = None
            failure: Exception | None = None
            try:
                result = question()
            except Exception as error:  # the edge of the stream: the engine must not die of it
                failure = error
            if not loop.is_closed():
                loop.call_soon_threadsafe(_settle, answer, result, failure)

        self._node.engine.call(run)
        return await answer


def _settle(answer: asyncio.Future[Any], result: object, failure: Exception | None) -> None:
    if answer.done():  # the caller has gone
        return
    if failure is not None:
        answer.set_exception(failure)
    else:
        answer.set_result(result)


def _joined(kvs: Sequence[LayerKv], layers: range, token_begin: int, num_tokens: int) -> KvFrame:
    keys, values = (b"".join(buffers) for buffers in zip(*kvs, strict=True))
    return KvFrame(layers.start, len(layers), token_begin, num_tokens, keys, values)


def _summary(ledger: StreamLedger, num_tokens: int) -> kv_pb2.KvSummary:
    summary = totals_to_proto(ledger.totals)
    summary.cached_token_count = num_tokens
    return summary
