"""One prefill: from the request message to the messages of its KV stream."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator

from opentelemetry import trace

from baton.engine.events import Ended, Failed, TokenReady
from baton.engine.kv_exchange import EXPORT_TOKENS
from baton.engine.sampling import SampledToken
from baton.engine.sequence import EngineRequest, Purpose
from baton.errors import InvalidFieldError
from baton.kv.stream import KvFrame, StreamLedger, StreamTotals
from baton.prefill.export import FrameExport
from baton.prefill.outbox import Outbox
from baton.rpc.frame_codec import encode_frame
from baton.rpc.wire_generation import sampling_from_proto, token_to_proto
from baton.rpc.wire_kv import dtype_from_proto, layout_from_proto, layout_to_proto
from baton.rpc.wire_time import duration_from_seconds
from baton.telemetry import names
from baton.telemetry.frames import frame_attributes
from baton.v1 import kv_pb2, prefill_service_pb2
from baton.worker.identity import check_identity
from baton.worker.monitor import NodeMonitor
from baton.worker.node import WorkerNode

MAX_FRAME_BYTES = 16 << 20
"""Largest frame made; groups of layers, then chunks of positions, shrink to stay below it."""


class Prefiller:
    """Runs prefills on a node's engine."""

    def __init__(self, node: WorkerNode) -> None:
        self._node = node
        self._layout = node.runner.info.layout

    async def run(
        self, request: prefill_service_pb2.PrefillRequest
    ) -> AsyncIterator[prefill_service_pb2.PrefillResponse | bytes]:
        """Yield the messages of a KV stream: layout, frames and first token, summary.

        Raises:
            BatonError: If the request is bad, the layouts differ, or the engine cannot take it.
        """
        self._node.check_accepts()
        self._check(request)
        outbox, started_at = Outbox(), time.time_ns()
        trace.get_current_span().set_attributes(
            {names.REQUEST_ID: request.request_id, names.ATTEMPT: request.attempt, names.NODE_ID: self._node.node_id}
        )
        engine_request = self._engine_request(request, outbox)
        self._node.engine.submit(engine_request, outbox.put)
        try:
            yield prefill_service_pb2.PrefillResponse(layout=layout_to_proto(self._layout))
            ledger = StreamLedger(self._layout, request.kv_token_begin, len(request.token_ids))
            async for response in _responses(outbox, ledger, started_at, self._node.monitor):
                yield response
        finally:
            self._node.engine.abort(engine_request)

    def _check(self, request: prefill_service_pb2.PrefillRequest) -> None:
        self._layout.check_matches(layout_from_proto(request.expected_layout, field="expected_layout"))
        check_identity(request.request_id, request.attempt, request.cache_salt)
        num_tokens = len(request.token_ids)
        if not 0 <= request.kv_token_begin < max(1, num_tokens):
            raise InvalidFieldError("kv_token_begin", f"expected 0 to {num_tokens - 1}, got {request.kv_token_begin}")
        if not 0 <= request.output_token_count < max(1, num_tokens):
            raise InvalidFieldError("output_token_count", f"expected 0 to {num_tokens - 1}")
        for name in ("layers_per_frame", "chunk_token_count"):
            if getattr(request, name) < 0:
                raise InvalidFieldError(name, f"expected 0 or more, got {getattr(request, name)}")
        if request.wire_dtype and dtype_from_proto(request.wire_dtype, field="wire_dtype") is not self._layout.dtype:
            raise InvalidFieldError("wire_dtype", f"expected {self._layout.dtype.value}, the cache's own")

    def _engine_request(self, request: prefill_service_pb2.PrefillRequest, outbox: Outbox) -> EngineRequest:
        loop = asyncio.get_running_loop()
        num_prompt = len(request.token_ids) - request.output_token_count

        def put(frame: KvFrame) -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(outbox.put, frame)

        return EngineRequest(
            request_id=f"{request.request_id}/{request.attempt}",
            prompt_token_ids=tuple(request.token_ids[:num_prompt]),
            output_token_ids=tuple(request.token_ids[num_prompt:]),
            params=sampling_from_proto(request.sampling),
            purpose=Purpose.PREFILL,
            cache_salt=request.cache_salt,
            is_cache_bypassed=request.bypass_prefix_cache,
            kv_token_begin=request.kv_token_begin,
            export=FrameExport(self._layout, request.kv_token_begin, self._layers_per_frame(request), put),
            chunk_tokens=self._chunk_tokens(request),
        )

    def _layers_per_frame(self, request: prefill_service_pb2.PrefillRequest) -> int:
        most_tokens = max(EXPORT_TOKENS, min(self._node.settings.max_step_tokens, self._chunk_tokens(request)))
        most_tokens = min(most_tokens, max(1, len(request.token_ids) - request.kv_token_begin))
        return max(1, min(request.layers_per_frame, MAX_FRAME_BYTES // (self._layer_token_bytes * most_tokens)))

    def _chunk_tokens(self, request: prefill_service_pb2.PrefillRequest) -> int:
        most_tokens = max(1, MAX_FRAME_BYTES // self._layer_token_bytes)
        return min(request.chunk_token_count or most_tokens, most_tokens)

    @property
    def _layer_token_bytes(self) -> int:
        """Return the bytes of one position in the largest layer."""
        return max(spec.num_token_elements for spec in self._layout.layers) * self._layout.dtype.num_bytes


async def _responses(
    outbox: Outbox, ledger: StreamLedger, started_at: int, monitor: NodeMonitor
) -> AsyncIterator[prefill_service_pb2.PrefillResponse | bytes]:
    """Yield what the outbox gives, up to the summary. `started_at`: when the request came, nanoseconds since 1970."""
    while True:
        item = await outbox.get()
        if isinstance(item, KvFrame):
            yield _frame_message(item, ledger, started_at)
        elif isinstance(item, TokenReady):
            yield prefill_service_pb2.PrefillResponse(first_token=_first_token(item.token))
        elif isinstance(item, Failed):
            raise item.error
        elif isinstance(item, Ended):  # frames were put before it, and have been sent
            yield prefill_service_pb2.PrefillResponse(summary=_summary(item, ledger.totals, monitor))
            return


def _frame_message(frame: KvFrame, ledger: StreamLedger, started_at: int) -> bytes:
    sequence_number, crc = ledger.append(frame)
    attributes = frame_attributes(frame)
    ready_at = started_at + round(frame.ready_seconds * 1e9)
    trace.get_current_span().add_event(names.EVENT_LAYER_COMPUTED, attributes, ready_at)
    trace.get_current_span().add_event(names.EVENT_FRAME_SENT, attributes)
    return encode_frame(frame, sequence_number, crc)


def _first_token(token: SampledToken) -> prefill_service_pb2.FirstToken:
    return prefill_service_pb2.FirstToken(token=token_to_proto(token))


def _summary(ended: Ended, totals: StreamTotals, monitor: NodeMonitor) -> kv_pb2.KvSummary:
    return kv_pb2.KvSummary(
        frame_count=totals.num_frames,
        byte_count=totals.num_bytes,
        token_begin=totals.token_begin,
        token_end=totals.token_end,
        cached_token_count=ended.num_cached_tokens,
        queue_duration=duration_from_seconds(ended.queue_seconds),
        compute_duration=duration_from_seconds(ended.prefill_seconds),
        frames_crc32c=totals.frames_crc32c,
        peak_memory_byte_count=monitor.peak_memory_bytes(),
        energy_joules=monitor.energy_joules(ended.decode_seconds + ended.prefill_seconds, ended.decode_seconds),
    )


def probe_sizes(byte_count: int, message_byte_count: int) -> Iterator[int]:
    """Return the payload sizes of a link probe, made as they are taken: there may be one for every byte.

    Raises:
        InvalidFieldError: If a count is out of range.
    """
    if not 0 <= byte_count <= 256 << 20:
        raise InvalidFieldError("byte_count", f"expected 0 to {256 << 20}, got {byte_count}")
    if not 0 <= message_byte_count <= 4 << 20:
        raise InvalidFieldError("message_byte_count", f"expected 0 to {4 << 20}, got {message_byte_count}")
    size = message_byte_count or 1 << 20
    return (min(size, byte_count - start) for start in range(0, byte_count, size))
