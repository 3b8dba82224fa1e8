"""The messages of one KV stream, made from frames and events, whoever carries them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from opentelemetry import trace

from baton.engine.events import Ended, Failed, TokenReady
from baton.kv.layout import KvLayout
from baton.kv.progress import KvProgress
from baton.kv.stream import KvFrame, StreamLedger, StreamTotals, header_crc32c, tokens_crc32c
from baton.prefill.outbox import Item
from baton.rpc.frame_codec import EncodedFrame, encode_frame, totals_to_proto
from baton.rpc.kv_service import ReceivedRequest
from baton.rpc.shared_frames import SharedOutlet, open_outlet
from baton.rpc.wire_generation import token_to_proto
from baton.rpc.wire_kv import layout_to_proto
from baton.rpc.wire_time import duration_from_seconds
from baton.telemetry import names
from baton.telemetry.frames import frame_attributes
from baton.telemetry.layer_spans import LayerSpans
from baton.v1 import kv_pb2, prefill_service_pb2
from baton.worker.monitor import NodeMonitor

Message = prefill_service_pb2.PrefillResponse | EncodedFrame
"""What is sent."""


class StreamMessages:
    """Numbers and checksums frames, and sums up at the end. Used by one stream, in one thread at a time.

    Args:
        layout: This node's cache, and in what frames travel.
        request: What the stream answers; it has just come.
        owed: What the stream has to bring.
        monitor: Tells what the work cost the machine.
        on_sending: Called with every frame that waits no more.
    """

    def __init__(
        self,
        layout: KvLayout,
        request: ReceivedRequest,
        owed: KvProgress,
        monitor: NodeMonitor,
        on_sending: Callable[[KvFrame], None],
    ) -> None:
        self._layout = layout
        self._monitor = monitor
        self._on_sending = on_sending
        self._token_ids = request.message.token_ids
        self._key = request.crc32c
        self._ledger = StreamLedger(layout, owed, request.crc32c)
        self._started_at = time.time_ns()
        self._spans = LayerSpans("compute", lambda: 0.0)
        self._last_ready_seconds = 0.0
        self._request = request.message
        self._outlet: SharedOutlet | None = None
        self._is_closed = False
        self.is_complete = False
        """Whether the summary has been made."""

    @property
    def shares_memory(self) -> bool:
        """Return whether payloads go to memory that the caller lends: `of` may wait for room there."""
        return self._outlet is not None

    def layout(self) -> Message:
        """Return the first message. Takes what memory the caller offers, for which it may wait a moment."""
        outlet = self._outlet = open_outlet(self._request)
        if outlet is not None:
            trace.get_current_span().set_attribute(names.KV_TRANSPORT, "shared")
            if self._is_closed:
                self.close()
        return prefill_service_pb2.PrefillResponse(
            layout=layout_to_proto(self._layout), request_crc32c=self._key, uses_shared_memory=outlet is not None
        )

    def close(self) -> None:
        """Write no more into the caller's memory, and let it go; from any thread."""
        self._is_closed = True
        outlet, self._outlet = self._outlet, None
        if outlet is not None:
            outlet.close()

    def of(self, item: Item, timeout_seconds: float | None = None) -> Iterator[Message]:
        """Yield the message of a frame or event, if it has one.

        Args:
            item: The frame or event.
            timeout_seconds: Longest wait for room in the caller's memory; None: as long as the stream runs.

        Raises:
            BatonError: If the request has failed.
            TimeoutError: If there is no room in time.
        """
        if isinstance(item, KvFrame):
            yield self._frame(item, timeout_seconds)
        elif isinstance(item, TokenReady):
            yield self._first_token(item)
        elif isinstance(item, Failed):
            raise item.error
        elif isinstance(item, Ended):  # frames were put before it, and have been sent
            self.is_complete = True
            yield prefill_service_pb2.PrefillResponse(summary=_summary(item, self._ledger.totals, self._monitor))

    def _first_token(self, ready: TokenReady) -> prefill_service_pb2.PrefillResponse:
        crc = tokens_crc32c(self._token_ids, ready.token.token_id)
        message = prefill_service_pb2.FirstToken(token=token_to_proto(ready.token), crc32c=crc)
        if (work := ready.prompt_work) is not None:
            message.queue_duration.CopyFrom(duration_from_seconds(work.queue_seconds))
            message.compute_duration.CopyFrom(duration_from_seconds(work.prefill_seconds))
            message.cached_token_count = work.num_cached_tokens
        return prefill_service_pb2.PrefillResponse(first_token=message)

    def _frame(self, frame: KvFrame, timeout_seconds: float | None) -> EncodedFrame:
        self._on_sending(frame)
        sequence_number, crc = self._ledger.append(frame)
        attributes = frame_attributes(frame)
        ready_at = self._started_at + round(frame.ready_seconds * 1e9)
        trace.get_current_span().add_event(names.EVENT_LAYER_COMPUTED, attributes, ready_at)
        trace.get_current_span().add_event(names.EVENT_FRAME_SENT, attributes)
        self._spans.add(frame, self._last_ready_seconds, frame.ready_seconds)
        self._last_ready_seconds = frame.ready_seconds
        header_crc = header_crc32c(self._key, sequence_number, frame, crc)
        outlet = self._outlet
        if outlet is None:
            return encode_frame(frame, sequence_number, crc, header_crc)
        return outlet.encode(frame, sequence_number, crc, header_crc, timeout_seconds)


def _summary(ended: Ended, totals: StreamTotals, monitor: NodeMonitor) -> kv_pb2.KvSummary:
    summary = kv_pb2.KvSummary(
        cached_token_count=ended.num_cached_tokens,
        queue_duration=duration_from_seconds(ended.queue_seconds),
        compute_duration=duration_from_seconds(ended.prefill_seconds),
        peak_memory_byte_count=monitor.peak_memory_bytes(),
        energy_joules=monitor.energy_joules(ended.decode_seconds + ended.prefill_seconds, ended.decode_seconds),
    )
    summary.MergeFrom(totals_to_proto(totals))
    return summary
