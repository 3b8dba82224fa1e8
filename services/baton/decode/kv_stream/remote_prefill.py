"""Brings the KV of one prompt here: by a stream, by others where it breaks, and at last by computing the rest."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from contextlib import nullcontext

from opentelemetry import trace

from baton.decode.kv_stream.prefill_stream import PrefillReader
from baton.decode.kv_stream.reader import SilentStreamError, Timeouts, reason_of
from baton.decode.kv_stream.receive_budget import FrameShape, ReceiveBudget
from baton.decode.kv_stream.recovery import Broken, DeadlineGuard, PrefillOption, Recovery, choose_option, local_seconds
from baton.decode.measurement import FrameTimeline
from baton.decode.peers import PeerSet
from baton.engine.events import Admitted
from baton.errors import (
    AttemptReusedError,
    BatonError,
    NonFiniteLogitsError,
    PassFailedError,
    StreamBrokenError,
    UnavailableError,
)
from baton.internal.v1 import decode_service_pb2, prefill_service_pb2
from baton.internal.v1.router_service_pb2 import Placement, PrefillAlternative
from baton.kv.kv_format import KvLayout
from baton.kv.stream import KvProgress
from baton.kv_transport.kv_services import PREFILL_PATH
from baton.node.node import WorkerNode
from baton.rpc.loop_channel import client_span
from baton.rpc.status import PEER_SILENT
from baton.security.access import digest_of
from baton.telemetry import names
from baton.telemetry.metrics import Metrics
from baton.v1 import generation_pb2
from baton.v1.generation_pb2 import PlacementSummary
from baton.wire.kv import layout_to_proto
from baton.wire.quantities import duration_from_seconds, estimate_from_proto, seconds_from_duration

log = logging.getLogger(__name__)

TOO_LARGE = "RECEPTION_TOO_LARGE"
"""Why a node that computes for others computes a prompt itself: more than half of its blocks would wait for its KV."""


class RemotePrefill:
    """Takes the KV of one request from prefill nodes.

    Invariant: when `run` has returned, the engine has been told either that the KV is complete or how much of it is.
    `deadline` is the event loop's time at which the caller gives the request up; None: never.
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
        timeouts: Timeouts,
        deadline: float | None,
        metrics: Metrics,
    ) -> None:
        layout = node.runner.info.layout_with(request.adapter)
        self._node, self._nodes = node, nodes
        self._request = first_request(request, layout, admitted.num_cached_tokens)
        self._engine_id = engine_id
        placement = request.placement
        options = [_option(placement), *map(_option, placement.alternatives)]  # what the router chose comes first
        self._options = [option for option in options if option.node_id not in ("", node.node_id)]
        self._deadline, self._metrics = deadline, metrics
        self._num_tokens = len(self._request.token_ids)
        begin = KvProgress.begin(layout, admitted.num_cached_tokens, self._num_tokens)
        self._reader = PrefillReader(node.engine, engine_id, begin, layout, budget, timeouts)
        self._layout, self._budget = layout, budget
        self.reception = self._reader.reception
        if request.wants_kv_timeline:
            self.reception.timeline = FrameTimeline(self.reception.clock.called)
        self._node_id = self._options[0].node_id
        self._break_reasons: list[str] = []
        self._fallback_reason = ""
        self._streams: Counter[str] = Counter()
        self._num_kept_tokens = 0

    def frame_landed(self) -> None:
        """Take note that the engine has written a frame."""
        self._reader.frame_landed()

    def close(self) -> None:
        """Take note that the request has ended."""
        self._reader.close()

    def describe(self, summary: PlacementSummary) -> None:
        """Add the outcome to a summary that tells of this node alone; its times become the prefill node's."""
        reception = self.reception
        reception.describe(summary)
        transport = generation_pb2.KvTransport.Value(f"KV_TRANSPORT_{reception.transport.upper()}")
        summary.kv_transport = transport  # type: ignore[assignment]
        summary.kv_transport_reason = reception.transport_reason
        summary.kv_break_reasons.extend(self._break_reasons)
        summary.kv_resume_count = max(0, self._streams.total() - 1)
        summary.kv_kept_token_count = self._num_kept_tokens
        summary.fallback_reason = self._fallback_reason
        if self._fallback_reason:
            return
        summary.prefill_node_id = self._node_id
        summary.prefill_cached_token_count = reception.prefill_cached_tokens
        summary.shared_token_count = reception.prefill_shared_tokens
        queue_seconds = seconds_from_duration(summary.queue_duration) + reception.queue_seconds
        summary.queue_duration.CopyFrom(duration_from_seconds(queue_seconds))
        summary.prefill_duration.CopyFrom(duration_from_seconds(reception.compute_seconds))
        summary.transfer_duration.CopyFrom(duration_from_seconds(reception.clock.busy_seconds))
        summary.exposed_duration.CopyFrom(duration_from_seconds(reception.clock.exposed_seconds))

    async def run(self) -> None:
        """Take the KV, whatever happens to the nodes that compute it."""
        option: PrefillOption | None = self._options[0]
        if not self._node.engine.scheduler.admission.can_receive(self._num_tokens):
            self._compute_here(TOO_LARGE)
            return
        while option is not None:
            try:
                await self._stream(option)
                return
            except BatonError as error:  # not kept: its traceback keeps what the stream has received
                option = self._after(option, error)
            except Exception as error:  # the edge of the stream: the request must not hang on a bug in it
                log.exception("reception_failed request=%s", self._engine_id)
                option = self._after(option, error)

    async def _stream(self, option: PrefillOption) -> None:
        self._node_id = option.node_id
        number = self._streams.total()
        self._streams[option.node_id] += 1
        source = self._nodes.source(option.node_id)
        attributes: dict[str, str | int] = {
            names.CACHED_TOKENS: self._request.kv_token_begin,
            names.PREFILL_NODE_ID: option.node_id,
            names.STREAM_NUMBER: number,
        }
        with client_span(PREFILL_PATH, self._nodes.address(option.node_id), names.SPAN_RECEIVE_KV, attributes):
            # It breaks the stream while there is still time to compute what is missing here.
            guard = nullcontext() if self._deadline is None else DeadlineGuard(self._deadline, self._local_seconds)
            async with guard:
                request = self._request_for(option, number)
                expected_seconds = option.estimate.time_to_first_token_seconds if option.estimate else 0.0
                await self._reader.run(source, request, option.transfer.answer_code, expected_seconds)

    def _request_for(self, option: PrefillOption, number: int) -> prefill_service_pb2.PrefillRequest:
        """Return the request of a stream, the first one's less what has come; raise ForbiddenError if not granted."""
        request = prefill_service_pb2.PrefillRequest()
        request.CopyFrom(self._request)
        shown = self._node.transfers.check_taken(
            option.transfer,
            source_node_id=option.node_id,
            request_id=request.request_id,
            salt_digest=digest_of(request.cache_salt),
            token_count=self._num_tokens,
        )
        request.transfer.CopyFrom(shown)
        shape = self._budget.frames_of(self._layout, FrameShape(option.layers_per_frame, option.chunk_tokens))
        request.layers_per_frame, request.chunk_token_count = shape
        request.wire_dtype = option.wire_dtype  # type: ignore[assignment]
        request.value_wire_dtype = option.value_wire_dtype  # type: ignore[assignment]
        progress = self._reader.progress
        request.stream_number = number
        request.kv_token_begin = min(progress.complete_tokens, progress.num_tokens - 1)
        if not progress.is_even:
            request.layer_token_begins.extend(progress.next_tokens)
        return request

    def _after(self, option: PrefillOption, error: Exception) -> PrefillOption | None:
        """Take note of a broken stream; return who is asked next."""
        reason = reason_of(error) if isinstance(error, BatonError) else "INTERNAL"
        progress = self._reader.progress
        self._break_reasons.append(reason)
        self._num_kept_tokens = progress.complete_tokens - self._request.kv_token_begin
        if progress.is_complete and self._reader.has_first_token:
            self._note(option, error, reason, Recovery.COMPLETE)
            self._reader.commit()
            return None
        following = self._choose(option, error)
        if following is not None:
            is_same = following.node_id == option.node_id
            self._note(option, error, reason, Recovery.SAME_NODE if is_same else Recovery.OTHER_NODE)
            return following
        self._note(option, error, reason, Recovery.LOCAL)
        self._compute_here(reason, 0 if isinstance(error, NonFiniteLogitsError) else progress.complete_tokens)
        return None

    def _compute_here(self, reason: str, num_sound_tokens: int = 0) -> None:
        self._fallback_reason = reason
        self._metrics.add(names.FALLBACKS, 1, {names.REASON: reason})
        trace.get_current_span().add_event(names.EVENT_FALLBACK, {names.REASON: reason})
        self._node.engine.fall_back(self._engine_id, num_sound_tokens)

    def _choose(self, option: PrefillOption, error: Exception) -> PrefillOption | None:
        progress = self._reader.progress
        if isinstance(error, PassFailedError | NonFiniteLogitsError):  # whatever it was, it needs no further node
            return None
        if progress.is_complete:  # the first token alone is missing: one position computed here gives it
            return None
        broken = Broken(
            option=option,
            is_node_in_doubt=isinstance(error, UnavailableError),
            is_node_unfit=not (_may_ask_again(error) and self._nodes.has(option.node_id)),
            num_streams_by_node=dict(self._streams),
            progress=progress,
            token_begin=self._request.kv_token_begin,
            has_first_token=self._reader.has_first_token,
            is_cache_bypassed=self._request.bypass_prefix_cache,
        )
        return choose_option(
            broken,
            [other for other in self._options[1:] if self._nodes.has(other.node_id)],
            local_seconds=self._local_seconds(),
            seconds_left=self._deadline and self._deadline - asyncio.get_running_loop().time(),
        )

    def _note(self, option: PrefillOption, error: Exception, reason: str, recovery: Recovery) -> None:
        log.warning(
            "kv_stream_broke request=%s prefill_node=%s reason=%s recovery=%s kept_tokens=%d cause=%s",
            self._engine_id,
            option.node_id,
            reason,
            recovery.value,
            self._num_kept_tokens,
            error,
        )
        attributes = {names.REASON: reason, names.RECOVERY: recovery.value, names.PREFILL_NODE_ID: option.node_id}
        trace.get_current_span().add_event(names.EVENT_KV_BROKEN, attributes)
        self._metrics.add(names.KV_BREAKS, 1, {names.REASON: reason, names.RECOVERY: recovery.value})

    def _local_seconds(self) -> float:
        """Return the time to compute here what has not come."""
        return local_seconds(self._node, self._reader.progress.complete_tokens, self._num_tokens)


def first_request(
    request: decode_service_pb2.DecodeServiceGenerateRequest, layout: KvLayout, num_cached_tokens: int
) -> prefill_service_pb2.PrefillRequest:
    """Return what the first stream of a prompt is asked for: all that is not here."""
    return prefill_service_pb2.PrefillRequest(
        request_id=request.request_id,
        attempt=request.attempt,
        token_ids=[*request.prompt_token_ids, *request.output_token_ids],
        output_token_count=len(request.output_token_ids),
        kv_token_begin=num_cached_tokens,
        expected_layout=layout_to_proto(layout),
        adapter=request.adapter,
        sampling=request.sampling,
        cache_salt=request.cache_salt,
        priority=request.priority,
        bypass_prefix_cache=request.bypass_prefix_cache,
        placement_id=request.placement.placement_id,
        tenant=request.tenant,
        tenant_weight=request.tenant_weight,
    )


def _option(message: Placement | PrefillAlternative) -> PrefillOption:
    return PrefillOption(
        message.prefill_node_id,
        message.layers_per_frame,
        message.chunk_token_count,
        message.wire_dtype,
        message.value_wire_dtype,
        message.transfer,
        estimate_from_proto(message.estimate) if message.HasField("estimate") else None,
    )


def _may_ask_again(error: Exception) -> bool:
    """Return whether the node that gave the error may well serve another stream of the request."""
    if isinstance(error, SilentStreamError):
        return False
    if isinstance(error, UnavailableError):
        return error.reason not in (PEER_SILENT, "ENGINE_HUNG", "DRAINING", "CONNECT_FAILED", "REFUSED", "NOT_OFFERED")
    is_plain = type(error) is BatonError
    return is_plain or isinstance(error, StreamBrokenError | AttemptReusedError) or not isinstance(error, BatonError)
