"""BlockService: hands cached blocks out by hash. Nothing is computed, and nothing held between two frames.

`BlockStream` knows what is read, in what order, and what is sent of it, whatever carries it.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Generator, Iterator
from concurrent.futures import Future
from contextlib import closing
from dataclasses import replace
from typing import NamedTuple

import grpc

from baton.capacity.prefix_reuse import FRAME_TOKENS, FRAMES_AHEAD, MAX_FRAME_BYTES
from baton.engine.runners.base import LayerKv, Runner
from baton.errors import InvalidFieldError, MismatchError, check_range
from baton.internal.v1 import block_service_pb2
from baton.internal.v1.block_service_pb2_grpc import BlockServiceServicer
from baton.kv.hashing import HASH_BYTES, BlockHash, split_hashes
from baton.kv.kv_format import KvLayout
from baton.kv.stream import KvFrame, KvProgress, StreamLedger, frame_groups, header_crc32c, pack_frame
from baton.kv_transport.frame_codec import EncodedFrame, encode_frame, totals_to_proto
from baton.kv_transport.kv_services import ReceivedPull
from baton.node.node import WorkerNode
from baton.node.requests import check_identity
from baton.security.access import digest_of
from baton.wire.kv import layout_from_proto, layout_to_proto, wire_from_proto
from baton.wire.quantities import duration_from_seconds

Message = block_service_pb2.PullBlocksResponse | EncodedFrame
"""What is sent."""


class BlockServicer(BlockServiceServicer):
    """Serves the prefix cache of a node by the gRPC library."""

    def __init__(self, node: WorkerNode) -> None:
        self._node = node

    async def PullBlocks(  # noqa: N802
        self, request: ReceivedPull, _context: grpc.aio.ServicerContext[ReceivedPull, Message]
    ) -> AsyncIterator[Message]:
        """Stream the leading blocks that are cached; frames as `baton.kv_transport.frame_codec` encodes them."""
        stream = BlockStream(self._node, request)
        yield stream.layout(await asyncio.wrap_future(stream.matched()))
        with closing(stream.readings()) as readings:
            for reading in readings:
                await asyncio.wrap_future(reading.kvs)
                yield await asyncio.to_thread(stream.frame, reading)
        yield stream.summary()


class PendingFrame(NamedTuple):
    """A frame that is being read."""

    kvs: Future[list[LayerKv]]
    """K and V of its layers, once they are there."""
    layers: range
    token_begin: int
    num_tokens: int


class BlockStream:
    """Answers one request; `layout`, then a `frame` for each of `readings`, then `summary`.

    The engine reads a few frames ahead of the network, between two passes and without holding blocks in between: so no
    stream keeps blocks from running requests, none can leak, and what has been evicted meanwhile is noticed. Raises
    BatonError if it cannot be served; the field is named.
    """

    def __init__(self, node: WorkerNode, request: ReceivedPull) -> None:
        node.check_accepts(lets_leave=True)
        if node.is_kv_quantized:
            raise MismatchError("kv_quantization", "rounded KV, which is not for others", "a request for it")
        self._arrived = time.perf_counter()
        self._engine = node.engine
        self._codec = node.runner.wire_codec
        self._block_tokens = node.runner.block_tokens
        self._request = request
        message = request.message
        self._hashes = _checked_hashes(message, node.runner)
        granted = digest_of(message.leading_block_hashes + message.block_hashes)
        asked = node.transfers.check_asked
        self._transfer_answer = asked(message.transfer, request_id=message.request_id, blocks_digest=granted)
        cache = node.runner.info.layout
        self._layout = replace(cache, wire=wire_from_proto(request.message, cache))
        self._ledger = StreamLedger(self._layout, KvProgress.begin(cache, 0, 0))  # until it is known what there is

    def matched(self) -> Future[int]:
        """Return how many of the blocks, from the first on, are cached."""
        return self._engine.count_cached(self._hashes)

    def layout(self, num_blocks: int) -> block_service_pb2.PullBlocksResponse:
        """Return the first message."""
        message, block_tokens = self._request.message, self._block_tokens
        self._hashes = self._hashes[:num_blocks]
        begin = message.block_begin * block_tokens
        owed = KvProgress.begin(self._layout, begin, begin + num_blocks * block_tokens)
        self._ledger = StreamLedger(self._layout, owed, self._request.crc32c)
        return block_service_pb2.PullBlocksResponse(
            layout=layout_to_proto(self._layout),
            request_crc32c=self._request.crc32c,
            block_count=num_blocks,
            transfer_answer=self._transfer_answer,
            clock=duration_from_seconds(self._arrived),
        )

    def readings(self) -> Generator[PendingFrame, None, None]:
        """Have the frames read in order, some ahead of those that have been taken."""
        ahead: deque[PendingFrame] = deque()
        try:
            for reading in self._begun():
                ahead.append(reading)
                if len(ahead) >= FRAMES_AHEAD:
                    yield ahead.popleft()
            while ahead:
                yield ahead.popleft()
        finally:
            for reading in ahead:
                reading.kvs.cancel()

    def frame(self, reading: PendingFrame) -> EncodedFrame:
        """Return the message of a frame that has been read; copies and checksums it, which is not for an event loop."""
        keys, values = (b"".join(buffers) for buffers in zip(*reading.kvs.result(), strict=True))
        layers = reading.layers
        frame = KvFrame(layers.start, len(layers), reading.token_begin, reading.num_tokens, keys, values)
        if not self._layout.is_wire_lossless:
            frame = pack_frame(self._codec, self._layout, frame)
        stamped = replace(frame, ready_seconds=time.perf_counter() - self._arrived)
        number, crc = self._ledger.append(stamped)
        return encode_frame(stamped, number, crc, header_crc32c(self._request.crc32c, number, stamped, crc))

    def summary(self) -> block_service_pb2.PullBlocksResponse:
        """Return the last message."""
        summary = totals_to_proto(self._ledger.totals)
        summary.cached_token_count = len(self._hashes) * self._block_tokens
        return block_service_pb2.PullBlocksResponse(summary=summary)

    def _begun(self) -> Iterator[PendingFrame]:
        message, block_tokens = self._request.message, self._block_tokens
        num_chunk_blocks = max(1, FRAME_TOKENS // block_tokens)
        for start in range(0, len(self._hashes), num_chunk_blocks):
            chunk = self._hashes[start : start + num_chunk_blocks]
            token_begin, num_tokens = (message.block_begin + start) * block_tokens, len(chunk) * block_tokens
            for layers in frame_groups(self._layout, self._layers_per_frame(num_tokens)):
                yield PendingFrame(self._engine.read_blocks(chunk, layers), layers, token_begin, num_tokens)

    def _layers_per_frame(self, num_tokens: int) -> int:
        num_elements = max(spec.num_token_elements for spec in self._layout.layers)
        layer_bytes = num_elements * self._layout.dtype.num_bytes * num_tokens
        return max(1, min(self._request.message.layers_per_frame, MAX_FRAME_BYTES // layer_bytes))


def _checked_hashes(message: block_service_pb2.PullBlocksRequest, runner: Runner) -> list[BlockHash]:
    """Return the hashes of a request that can be served; BatonError if it cannot; the field is named."""
    check_identity(message.request_id, message.attempt, "")
    layout: KvLayout = runner.info.layout
    layout.check_matches(layout_from_proto(message.expected_layout, field="expected_layout"))
    block_tokens = runner.block_tokens
    if message.block_token_count != block_tokens:
        raise MismatchError("block_token_count", block_tokens, message.block_token_count)
    for name in ("block_begin", "layers_per_frame"):
        check_range(name, getattr(message, name), 0)
    try:
        hashes = split_hashes(message.block_hashes)
    except ValueError as error:
        raise InvalidFieldError("block_hashes", str(error)) from None
    if not hashes:
        raise InvalidFieldError("block_hashes", "expected 1 hash or more")
    max_blocks = runner.info.max_context_tokens // block_tokens
    if message.block_begin + len(hashes) > max_blocks:
        raise InvalidFieldError("block_begin", f"expected blocks up to {max_blocks}, the end of the context")
    if len(message.leading_block_hashes) != message.block_begin * HASH_BYTES:
        problem = f"expected {message.block_begin} hashes, as block_begin says"
        raise InvalidFieldError("leading_block_hashes", problem)
    return hashes
