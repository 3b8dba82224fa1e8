"""Takes the beginning of a prompt from another node's prefix cache; what is missing then is computed here."""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import replace

from baton.decode.kv_stream import reader
from baton.decode.kv_stream.receive_budget import FrameShape, ReceiveBudget
from baton.decode.kv_stream.recovery import LOCAL_MARGIN, local_seconds
from baton.decode.peers import PeerSet
from baton.engine.events import Admitted
from baton.engine.runners.base import Runner
from baton.errors import BatonError, InvalidFieldError, StreamBrokenError, check_range
from baton.internal.v1 import block_service_pb2, decode_service_pb2, kv_pb2, router_service_pb2
from baton.kv.hashing import HASH_BYTES, join_hashes
from baton.kv.stream import KvProgress
from baton.kv_transport.frame_codec import request_crc32c, serialize_request
from baton.kv_transport.kv_services import PULL_PATH
from baton.node.node import WorkerNode
from baton.rpc.loop_channel import client_span
from baton.security.access import digest_of
from baton.telemetry import names
from baton.telemetry.metrics import Metrics
from baton.telemetry.tracing import current_metadata
from baton.v1 import generation_pb2
from baton.v1.generation_pb2 import PlacementSummary
from baton.wire.kv import layout_to_proto, wire_from_proto
from baton.wire.quantities import duration_from_seconds, seconds_from_duration

log = logging.getLogger(__name__)


class BlockPull(reader.KvStreamReader):
    """Takes cached blocks for one request, which waits in the engine.

    Invariant: when `run` has returned, the engine has been told how much of the prompt is here and computes the rest,
    whatever has happened to the other node. `deadline` is the event loop's time at which the caller gives the request
    up; None: never.
    """

    def __init__(
        self,
        node: WorkerNode,
        nodes: PeerSet,
        request: decode_service_pb2.DecodeServiceGenerateRequest,
        engine_id: str,
        admitted: Admitted,
        *,
        budget: ReceiveBudget,
        timeouts: reader.Timeouts,
        deadline: float | None,
        metrics: Metrics,
    ) -> None:
        num_cached_tokens = admitted.num_cached_tokens
        layout, num_tokens = node.runner.info.layout, len(request.prompt_token_ids) + len(request.output_token_ids)
        begin = KvProgress.begin(layout, num_cached_tokens, num_tokens)
        super().__init__(node.engine, engine_id, begin, layout, budget)
        self._nodes = nodes
        self._node_id = request.placement.prefix_pull.node_id
        self._request = pull_request(request, node.runner, admitted)
        self._node = node
        self._grant, self._salt_digest = request.placement.prefix_pull.transfer, digest_of(request.cache_salt)
        shape = budget.frames_of(layout, FrameShape(self._request.layers_per_frame))
        self._request.layers_per_frame = shape.layers_per_frame
        self._num_wanted = len(self._request.block_hashes) // HASH_BYTES
        self._num_promised = 0
        self._num_cached = num_cached_tokens
        self._frame_seconds = timeouts.frame_seconds
        computing = local_seconds(node, num_cached_tokens, num_tokens)
        self._latest = None if deadline is None else deadline - LOCAL_MARGIN * computing
        self._metrics = metrics
        self._break_reason = ""
        self._seconds = 0.0

    def describe(self, summary: PlacementSummary) -> None:
        """Add the pull's outcome to a summary that tells of this node alone."""
        self.reception.describe(summary)
        summary.pull_node_id = self._node_id
        summary.pulled_token_count = self._num_pulled
        summary.transfer_duration.CopyFrom(duration_from_seconds(self.reception.clock.busy_seconds))
        summary.pull_duration.CopyFrom(duration_from_seconds(self._seconds))
        waiting = max(0.0, seconds_from_duration(summary.queue_duration) - self._seconds)
        summary.queue_duration.CopyFrom(duration_from_seconds(waiting))
        if self._break_reason:
            summary.kv_break_reasons.append(self._break_reason)
        if self.reception.wire is not None:
            summary.kv_transport = generation_pb2.KV_TRANSPORT_GRPC

    async def run(self) -> None:
        """Take what there is, then let the engine compute the rest."""
        outcome = "COMPLETE"
        try:
            if self._request.block_hashes and not await self._pull():
                outcome = "ABSENT"
        except BatonError as error:
            outcome = self._break_reason = reader.reason_of(error)
            log.warning("pull_broke request=%s node=%s cause=%s", self.engine_id, self._node_id, error)
        except Exception:  # the edge of the stream: the request must not hang on a bug in it
            log.exception("pull_failed request=%s", self.engine_id)
            outcome = self._break_reason = "INTERNAL"
        reception = self.reception
        self._seconds = time.perf_counter() - reception.clock.called
        self._metrics.add(names.PULLS, 1, {names.REASON: outcome})
        self._metrics.add(names.PULLED_PROMPT_TOKENS, self._num_pulled)
        self._metrics.add(names.PULLED_BYTES, reception.num_bytes, {names.KV_TRANSPORT: reception.transport})
        self._engine.fall_back(self.engine_id, self._num_cached + self._num_pulled)

    @property
    def _num_pulled(self) -> int:
        """Return the positions that came and count, which begin at a block's begin."""
        return max(0, self.progress.complete_tokens - self._num_cached)

    async def _pull(self) -> bool:
        """Take the blocks; return whether the node had all of them."""
        stub = self._nodes.blocks(self._node_id)
        shown = self._node.transfers.check_taken(
            self._grant,
            source_node_id=self._node_id,
            request_id=self._request.request_id,
            salt_digest=self._salt_digest,
            token_count=self.progress.num_tokens,
        )
        self._request.transfer.CopyFrom(shown)
        attributes: dict[str, str | int] = {names.CACHED_TOKENS: self._num_cached, names.PULL_NODE_ID: self._node_id}
        terms = reader.StreamTerms(
            replace(self._layout, wire=wire_from_proto(self._request, self._layout)),
            request_crc32c(serialize_request(self._request)),
            is_converted=False,
            transfer_answer=self._grant.answer_code,
        )
        with client_span(PULL_PATH, self._nodes.address(self._node_id), names.SPAN_RECEIVE_KV, attributes):
            try:
                call = stub.PullBlocks(self._request, metadata=current_metadata())
                async with asyncio.timeout_at(self._latest), reader.grpc_call(call) as messages:
                    # No queue stands before the first message: the node only reads.
                    timeouts = reader.Timeouts(self._frame_seconds, self._frame_seconds)
                    await self._read(reader.timed(aiter(messages), timeouts), terms)
            except TimeoutError:
                raise reader.SilentStreamError(
                    "the stream left no more time than computing takes here", reason="DEADLINE"
                ) from None
        return self._num_promised == self._num_wanted

    def _promise(self, message: block_service_pb2.PullBlocksResponse) -> reader.StreamPromise:
        if not 0 <= message.block_count <= self._num_wanted:
            raise StreamBrokenError(f"the node promises {message.block_count} of {self._num_wanted} blocks")
        self._num_promised = message.block_count
        block_tokens = self._request.block_token_count
        begin = self._request.block_begin * block_tokens
        owed = KvProgress.begin(self._layout, begin, begin + message.block_count * block_tokens)
        return reader.StreamPromise(owed, message.request_crc32c)

    def _take_summary(self, summary: kv_pb2.KvSummary) -> None:
        """Take nothing: all that counts has been written."""


def check_pull(placement: router_service_pb2.Placement) -> None:
    """Check where a request's beginning is to be taken from; raise InvalidFieldError if that cannot be."""
    pull, field = placement.prefix_pull, "placement.prefix_pull"
    if not pull.node_id:
        raise InvalidFieldError(f"{field}.node_id", "expected the id of a node")
    if placement.prefill_node_id not in ("", placement.decode_node_id):
        raise InvalidFieldError(field, "expected none where placement.prefill_node_id computes the prompt")
    check_range(f"{field}.block_count", pull.block_count, 1)


def pull_request(
    request: decode_service_pb2.DecodeServiceGenerateRequest, runner: Runner, admitted: Admitted
) -> block_service_pb2.PullBlocksRequest:
    """Return what to ask another node's cache for: the blocks missing here, without the one of the last position.

    That position is computed here in any case, because its logits choose the first token.
    """
    pull, layout, block_tokens = request.placement.prefix_pull, runner.info.layout, runner.block_tokens
    num_tokens = len(request.prompt_token_ids) + len(request.output_token_ids)
    begin = admitted.num_cached_tokens // block_tokens
    end = min(pull.block_count, (num_tokens - 1) // block_tokens)
    return block_service_pb2.PullBlocksRequest(
        request_id=request.request_id,
        attempt=request.attempt,
        block_hashes=join_hashes(admitted.block_hashes[begin:end]),
        leading_block_hashes=join_hashes(admitted.block_hashes[:begin]),
        block_begin=begin,
        block_token_count=block_tokens,
        expected_layout=layout_to_proto(layout),
        wire_dtype=pull.wire_dtype,
        value_wire_dtype=pull.value_wire_dtype,
        layers_per_frame=pull.layers_per_frame,
    )
