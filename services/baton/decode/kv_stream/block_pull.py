"""Takes the beginning of a prompt from another node's prefix cache; what is missing then is computed here."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import replace
from typing import Protocol

from baton.decode.kv_stream.clock import Reception, ReceptionClock
from baton.decode.kv_stream.prefill_source import grpc_call
from baton.decode.kv_stream.reader import MAX_FRAMES_IN_FLIGHT, SilentStreamError, Timeouts, reason_of, timed
from baton.engine.engine import Engine
from baton.engine.runners.base import Runner
from baton.errors import BatonError, InvalidFieldError, MismatchError, StreamBrokenError
from baton.kv.hashing import HASH_BYTES, block_hashes, join_hashes, root_hash
from baton.kv.kv_format import KvLayout
from baton.kv.stream import KvFrame, KvProgress, StreamLedger, unpack_frame
from baton.kv_transport.block_service import BlockStub, serialize_pull
from baton.kv_transport.frame_codec import ReceivedFrame, totals_from_proto
from baton.kv_transport.kv_service import request_crc32c
from baton.telemetry import names
from baton.telemetry.metrics import Metrics
from baton.telemetry.tracing import tracer
from baton.v1 import block_service_pb2, decode_service_pb2, kv_pb2, router_service_pb2
from baton.v1.generation_pb2 import PlacementSummary
from baton.wire.durations import duration_from_seconds, seconds_from_duration
from baton.wire.kv import dtype_to_proto, layout_from_proto, layout_to_proto, wire_from_proto

log = logging.getLogger(__name__)

_LOCAL_MARGIN = 1.5
"""Times as long as expected that computing the prompt here may take, where a deadline is near."""

Message = block_service_pb2.PullBlocksResponse | ReceivedFrame
"""What is received."""


class BlockNodes(Protocol):
    """Knows other nodes' prefix caches; `baton.decode.peers.PeerSet` is one."""

    def blocks(self, node_id: str) -> BlockStub:
        """Return the stub of a node's prefix cache.

        Raises:
            NotFoundError: If the node is not known.
        """


class BlockPull:
    """Takes cached blocks for one request, which waits in the engine.

    Invariant: when `run` has returned, the engine has been told how much of the prompt is here and computes the rest,
    whatever has happened to the other node.

    Args:
        engine: Where the request waits.
        nodes: Whom to call.
        request: What to ask for; no hashes: nothing is missing.
        node_id: Whom to ask.
        timeouts: How long a silent stream is waited for.
        engine_id: The engine's name of the request.
        num_cached_tokens: Leading positions that are here.
        local_seconds: Time to compute here what is missing.
        deadline: Event loop's time at which the caller gives the request up; None: never.
        metrics: Where to count.
    """

    def __init__(
        self,
        engine: Engine,
        nodes: BlockNodes,
        request: block_service_pb2.PullBlocksRequest,
        node_id: str,
        timeouts: Timeouts,
        *,
        engine_id: str,
        num_cached_tokens: int,
        local_seconds: float,
        deadline: float | None,
        metrics: Metrics,
    ) -> None:
        self._engine = engine
        self._nodes = nodes
        self._request = request
        self._node_id = node_id
        self._timeouts = timeouts
        self._engine_id = engine_id
        self._num_cached = self._num_here = num_cached_tokens
        self._latest = None if deadline is None else deadline - _LOCAL_MARGIN * local_seconds
        self._metrics = metrics
        self._cache = engine.runner.info.layout
        self._layout = replace(self._cache, wire=wire_from_proto(request, self._cache))
        self._slots = asyncio.Semaphore(MAX_FRAMES_IN_FLIGHT)
        self._reception = Reception(ReceptionClock(time.perf_counter()))
        self._break_reason = ""
        self._seconds = 0.0

    def frame_landed(self) -> None:
        """Take note that the engine has written a frame."""
        self._slots.release()

    def describe(self, summary: PlacementSummary) -> None:
        """Add to a summary what came of it."""
        reception = self._reception
        summary.pull_node_id = self._node_id
        summary.pulled_token_count = self._num_here - self._num_cached
        summary.kv_byte_count, summary.kv_frame_count = reception.num_bytes, reception.num_frames
        summary.transfer_duration.CopyFrom(duration_from_seconds(reception.clock.busy_seconds))
        summary.pull_duration.CopyFrom(duration_from_seconds(self._seconds))
        computing = max(0.0, seconds_from_duration(summary.prefill_duration) - self._seconds)
        summary.prefill_duration.CopyFrom(duration_from_seconds(computing))
        if self._break_reason:
            summary.kv_break_reasons.append(self._break_reason)
        if reception.wire is not None:
            summary.kv_transport = kv_pb2.KV_TRANSPORT_GRPC
            summary.key_wire_dtype = dtype_to_proto(reception.wire.keys)
            summary.value_wire_dtype = dtype_to_proto(reception.wire.values)

    async def run(self) -> None:
        """Take what there is, then let the engine compute the rest."""
        outcome = "COMPLETE"
        try:
            if self._request.block_hashes and not await self._pull():
                outcome = "ABSENT"
        except BatonError as error:
            outcome = self._break_reason = reason_of(error)
            log.warning("pull_broke request=%s node=%s cause=%s", self._engine_id, self._node_id, error)
        except Exception:  # the edge of the stream: the request must not hang on a bug in it
            log.exception("pull_failed request=%s", self._engine_id)
            outcome = self._break_reason = "INTERNAL"
        self._seconds = time.perf_counter() - self._reception.clock.called
        self._metrics.add_pull(
            outcome,
            num_tokens=self._num_here - self._num_cached,
            num_bytes=self._reception.num_bytes,
            transport=self._reception.transport,
        )
        self._engine.fall_back(self._engine_id, self._num_here)

    async def _pull(self) -> bool:
        """Take the blocks; return whether the node had all of them."""
        stub = self._nodes.blocks(self._node_id)
        attributes: dict[str, str | int] = {
            names.CACHED_TOKENS: self._num_cached,
            names.PULL_NODE_ID: self._node_id,
        }
        with tracer().start_as_current_span(names.SPAN_RECEIVE_KV, attributes=attributes):
            try:
                async with self._until_latest(), grpc_call(stub.PullBlocks(self._request)) as messages:
                    # No queue stands before the first message: the node only reads.
                    timeouts = Timeouts(self._timeouts.frame_seconds, self._timeouts.frame_seconds)
                    return await self._take(timed(aiter(messages), timeouts))
            except TimeoutError:
                raise SilentStreamError(
                    "the stream left no more time than computing takes here", reason="DEADLINE"
                ) from None

    def _until_latest(self) -> AbstractAsyncContextManager[object]:
        return nullcontext() if self._latest is None else asyncio.timeout_at(self._latest)

    async def _take(self, messages: AsyncIterator[Message]) -> bool:
        ledger: StreamLedger | None = None
        num_blocks = 0
        async for message in messages:
            if isinstance(message, ReceivedFrame):
                if ledger is None:
                    raise StreamBrokenError("a frame came before the layout")
                await self._take_frame(message, ledger)
                continue
            element = message.WhichOneof("element")
            if element == "layout" and ledger is None:
                num_blocks = message.block_count
                ledger = self._take_layout(message)
            elif element == "summary" and ledger is not None:
                self._take_summary(message.summary, ledger)
                return num_blocks == self._num_wanted
            else:
                raise StreamBrokenError(f"{element} is not due {'after' if ledger else 'before'} the layout")
        raise StreamBrokenError("the stream ended without a summary")

    @property
    def _num_wanted(self) -> int:
        return len(self._request.block_hashes) // HASH_BYTES

    def _take_layout(self, message: block_service_pb2.PullBlocksResponse) -> StreamLedger:
        """Return the account of a stream that answers the request, and brings what this cache can hold."""
        self._reception.clock.layout_arrived(time.perf_counter())
        self._cache.check_matches(layout_from_proto(message.layout))
        wire = wire_from_proto(message.layout, self._cache)
        for field, mine, theirs in zip(("wire_dtype", "value_wire_dtype"), self._layout.wire_format, wire, strict=True):
            if mine is not theirs:
                raise MismatchError(field, mine.value, theirs.value)
        self._reception.wire = wire
        if message.request_crc32c != request_crc32c(serialize_pull(self._request)):
            raise StreamBrokenError("the node answers another request: this one was changed on the way")
        if not 0 <= message.block_count <= self._num_wanted:
            raise StreamBrokenError(f"the node promises {message.block_count} of {self._num_wanted} blocks")
        begin = self._request.block_begin * self._request.block_token_count
        end = begin + message.block_count * self._request.block_token_count
        return StreamLedger(self._layout, KvProgress.begin(self._cache, begin, end), message.request_crc32c)

    async def _take_frame(self, received: ReceivedFrame, ledger: StreamLedger) -> None:
        frame = received.frame
        self._reception.clock.frame_arrived(time.perf_counter(), frame.ready_seconds)
        ledger.enter(frame, received.sequence_number, received.crc32c, received.actual_crc32c, received.header_crc32c)
        self._reception.num_frames += 1
        self._reception.num_bytes += frame.num_bytes
        await self._write(await self._unpacked(frame))
        self._num_here = max(self._num_here, ledger.progress.complete_tokens)

    async def _unpacked(self, frame: KvFrame) -> KvFrame:
        if self._layout.is_wire_lossless:
            return frame
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(None, unpack_frame, self._engine.runner.wire_codec, self._layout, frame)

    async def _write(self, frame: KvFrame) -> None:
        await self._slots.acquire()
        self._engine.write_kv(self._engine_id, frame, is_rounded=not self._layout.is_wire_lossless)

    def _take_summary(self, message: kv_pb2.KvSummary, ledger: StreamLedger) -> None:
        try:
            ledger.close(totals_from_proto(message))
        except StreamBrokenError:
            self._num_here = self._num_cached  # whoever miscounts what it sends may have sent anything
            raise


def check_pull(placement: router_service_pb2.Placement, layout: KvLayout) -> None:
    """Check where a request's beginning is to be taken from.

    Raises:
        InvalidFieldError: If that cannot be; the field is named.
    """
    pull, field = placement.prefix_pull, "placement.prefix_pull"
    if not pull.node_id:
        raise InvalidFieldError(f"{field}.node_id", "expected the id of a node")
    if placement.prefill_node_id not in ("", placement.decode_node_id):
        raise InvalidFieldError(field, "expected none where placement.prefill_node_id computes the prompt")
    if pull.block_count < 1:
        raise InvalidFieldError(f"{field}.block_count", f"expected 1 or more, got {pull.block_count}")
    wire_from_proto(pull, layout)


def pull_request(
    request: decode_service_pb2.DecodeServiceGenerateRequest, runner: Runner, num_cached_tokens: int
) -> block_service_pb2.PullBlocksRequest:
    """Return what to ask another node's cache for: the blocks that are not here, none of them the last position's.

    That position is computed here in any case, because its logits choose the first token.
    """
    pull, layout, block_tokens = request.placement.prefix_pull, runner.info.layout, runner.block_tokens
    tokens = [*request.prompt_token_ids, *request.output_token_ids]
    begin, end = num_cached_tokens // block_tokens, min(pull.block_count, (len(tokens) - 1) // block_tokens)
    revision = runner.info.layout_with(request.adapter).model_revision_digest
    root = root_hash(revision, block_tokens, request.cache_salt)
    hashes = block_hashes(root, tokens[: end * block_tokens], block_tokens)[begin:]
    return block_service_pb2.PullBlocksRequest(
        request_id=request.request_id,
        attempt=request.attempt,
        block_hashes=join_hashes(hashes),
        block_begin=begin,
        block_token_count=block_tokens,
        expected_layout=layout_to_proto(layout),
        wire_dtype=pull.wire_dtype,
        value_wire_dtype=pull.value_wire_dtype,
        layers_per_frame=pull.layers_per_frame,
    )
