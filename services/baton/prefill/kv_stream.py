"""A prompt's KV on its way out: layers of a running computation become frames, frames and events become messages."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

from opentelemetry import trace

from baton.engine.events import Ended, Failed, TokenReady
from baton.engine.runners.base import LayerKv
from baton.internal.v1 import kv_pb2, prefill_service_pb2
from baton.kv import stream
from baton.kv.kv_format import KvLayout, LayerSpec
from baton.kv_transport import frame_codec
from baton.kv_transport.kv_services import ReceivedRequest
from baton.node.requests import token_to_proto
from baton.node.sensors.monitor import NodeMonitor
from baton.prefill.outbox import Item
from baton.telemetry import names
from baton.telemetry.tracing import LayerSpans, frame_attributes
from baton.wire.kv import layout_to_proto
from baton.wire.quantities import duration_from_seconds

Message = prefill_service_pb2.PrefillResponse | frame_codec.EncodedFrame
"""What is sent."""


class FrameExport:
    """Groups consecutive layers of a pass into frames and hands each on when its last layer is there.

    Positions that are not owed, or exported already, are dropped: a request computed again after a preemption sends
    nothing twice, and a resumed stream begins in each layer where the broken one ended. `put` takes a finished frame,
    in the engine's thread; frames carry the time since construction.
    """

    def __init__(
        self,
        layout: KvLayout,
        owed: stream.KvProgress,
        layers_per_frame: int,
        put: Callable[[stream.KvFrame], None],
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._layout = layout
        self._next_token = list(owed.next_tokens)
        self._num_tokens = owed.num_tokens
        self._last_layers = frozenset(group.stop - 1 for group in stream.frame_groups(layout, layers_per_frame))
        self._pieces: list[_Piece] = []
        self._put = put
        self._clock = clock
        self._started = clock()

    def __call__(self, start: int, layer: int, kv: LayerKv) -> None:
        """Take K and V of one layer for the positions from `start`."""
        spec = self._layout.layers[layer]
        if spec.state:  # it stands for all positions that are owed
            start, num_tokens = self._next_token[layer], self._num_tokens - self._next_token[layer]
        else:
            num_tokens = len(kv.keys) // (spec.num_kv_heads * spec.key_head_dim * self._layout.dtype.num_bytes)
        num_sent = max(0, self._next_token[layer] - start)
        if num_sent < num_tokens:
            self._next_token[layer] = start + num_tokens
            unsent = self._without_sent(kv, spec, num_tokens, num_sent)
            self._add(_Piece(layer, range(start + num_sent, start + num_tokens), unsent))
        if layer in self._last_layers:
            self._flush()

    def _add(self, piece: _Piece) -> None:
        """Add a layer to the frame being gathered; a gap in layers, or other positions, begin another frame."""
        last = self._pieces[-1] if self._pieces else None
        if last is not None and (last.layer + 1, last.positions) != (piece.layer, piece.positions):
            self._flush()
        self._pieces.append(piece)

    def _flush(self) -> None:
        pieces, self._pieces = self._pieces, []
        if not pieces:
            return
        first = pieces[0]
        self._put(
            stream.KvFrame(
                layer_begin=first.layer,
                num_layers=len(pieces),
                token_begin=first.positions.start,
                num_tokens=len(first.positions),
                keys=_joined([piece.kv.keys for piece in pieces]),
                values=_joined([piece.kv.values for piece in pieces]),
                ready_seconds=self._clock() - self._started,
                kind=stream.kind_of(self._layout.layers[first.layer]),
                state=self._layout.layers[first.layer].state,
            )
        )

    def _without_sent(self, kv: LayerKv, spec: LayerSpec, num_tokens: int, num_sent: int) -> LayerKv:
        """Return the bytes without the first `num_sent` positions of every head."""
        if num_sent == 0:
            return kv
        element_bytes = self._layout.dtype.num_bytes
        return LayerKv(
            _cut_tokens(kv.keys, spec.num_kv_heads, num_tokens, num_sent, spec.key_head_dim * element_bytes),
            _cut_tokens(kv.values, spec.num_kv_heads, num_tokens, num_sent, spec.value_head_dim * element_bytes),
        )


class StreamMessages:
    """Numbers and checksums frames, and sums up at the end. Used by one stream, in one thread at a time.

    `on_sending` is called with every frame that waits no more; by `transfer_answer` the caller knows this node.
    """

    def __init__(
        self,
        layout: KvLayout,
        request: ReceivedRequest,
        owed: stream.KvProgress,
        monitor: NodeMonitor,
        on_sending: Callable[[stream.KvFrame], None],
        transfer_answer: bytes,
    ) -> None:
        self._layout = layout
        self._monitor = monitor
        self._on_sending = on_sending
        self._transfer_answer = transfer_answer
        self._token_ids = request.message.token_ids
        self._key = request.crc32c
        self._ledger = stream.StreamLedger(layout, owed, request.crc32c)
        self._started_at, self._began = time.time_ns(), time.perf_counter()
        self._spans = LayerSpans("compute", lambda: 0.0)
        self._last_ready_seconds = 0.0
        self._request = request.message
        self._outlet: frame_codec.SharedMemoryWriter | None = None
        self._is_closed = False
        self.is_complete = False
        """Whether the summary has been made."""

    @property
    def shares_memory(self) -> bool:
        """Return whether payloads go to memory that the caller lends: `of` may wait for room there."""
        return self._outlet is not None

    def layout(self) -> Message:
        """Return the first message. Opens the memory that the caller offers, which may take a moment."""
        outlet = self._outlet = frame_codec.open_shared_memory(self._request, self._began)
        if outlet is not None:
            trace.get_current_span().set_attribute(names.KV_TRANSPORT, "shared")
            if self._is_closed:
                self.close()
        return prefill_service_pb2.PrefillResponse(
            layout=layout_to_proto(self._layout),
            request_crc32c=self._key,
            uses_shared_memory=outlet is not None,
            transfer_answer=self._transfer_answer,
            clock=duration_from_seconds(self._began),
        )

    def close(self) -> None:
        """Write no more into the caller's memory, and let it go; from any thread."""
        self._is_closed = True
        outlet, self._outlet = self._outlet, None
        if outlet is not None:
            outlet.close()

    def of(self, item: Item, timeout_seconds: float | None = None) -> Iterator[Message]:
        """Yield the message of a frame or event, if it has one.

        Waits as long for room in the caller's memory; None: as long as the stream runs. Raises BatonError if the
        request has failed, TimeoutError if there is no room in time.
        """
        if isinstance(item, stream.KvFrame):
            yield self._frame(item, timeout_seconds)
        elif isinstance(item, TokenReady):
            yield self._first_token(item)
        elif isinstance(item, Failed):
            raise item.error
        elif isinstance(item, Ended):  # frames were put before it, and have been sent
            self.is_complete = True
            yield prefill_service_pb2.PrefillResponse(summary=_summary(item, self._ledger.totals, self._monitor))

    def _first_token(self, ready: TokenReady) -> prefill_service_pb2.PrefillResponse:
        crc = stream.tokens_crc32c(self._token_ids, ready.token.token_id)
        message = prefill_service_pb2.FirstToken(token=token_to_proto(ready.token), crc32c=crc)
        if (work := ready.prompt_work) is not None:
            message.queue_duration.CopyFrom(duration_from_seconds(work.queue_seconds))
            message.compute_duration.CopyFrom(duration_from_seconds(work.prefill_seconds))
            message.cached_token_count = work.num_cached_tokens
            message.shared_token_count = work.num_shared_tokens
        return prefill_service_pb2.PrefillResponse(first_token=message)

    def _frame(self, frame: stream.KvFrame, timeout_seconds: float | None) -> frame_codec.EncodedFrame:
        self._on_sending(frame)
        sequence_number, crc = self._ledger.append(frame)
        attributes = frame_attributes(frame)
        ready_at = self._started_at + round(frame.ready_seconds * 1e9)
        trace.get_current_span().add_event(names.EVENT_LAYER_COMPUTED, attributes, ready_at)
        trace.get_current_span().add_event(names.EVENT_FRAME_SENT, attributes)
        self._spans.add(frame, self._last_ready_seconds, frame.ready_seconds)
        self._last_ready_seconds = frame.ready_seconds
        header_crc = stream.header_crc32c(self._key, sequence_number, frame, crc)
        outlet = self._outlet
        if outlet is None:
            return frame_codec.encode_frame(frame, sequence_number, crc, header_crc)
        return outlet.encode(frame, sequence_number, crc, header_crc, timeout_seconds)


class _Piece(NamedTuple):
    """One layer's share of a frame."""

    layer: int
    positions: range
    kv: LayerKv


def _joined(buffers: list[bytes | memoryview]) -> bytes | memoryview:
    """Return the buffers one after the other; a single one as it is."""
    return buffers[0] if len(buffers) == 1 else b"".join(buffers)


def _cut_tokens(data: bytes | memoryview, num_heads: int, num_tokens: int, num_cut: int, row_bytes: int) -> bytes:
    head_bytes = num_tokens * row_bytes
    view = memoryview(data)
    return b"".join(
        view[head * head_bytes + num_cut * row_bytes : (head + 1) * head_bytes] for head in range(num_heads)
    )


def _summary(ended: Ended, totals: stream.StreamTotals, monitor: NodeMonitor) -> kv_pb2.KvSummary:
    work = ended.prompt_work
    summary = kv_pb2.KvSummary(
        cached_token_count=work.num_cached_tokens,
        shared_token_count=work.num_shared_tokens,
        queue_duration=duration_from_seconds(work.queue_seconds),
        compute_duration=duration_from_seconds(work.prefill_seconds),
        peak_memory_byte_count=monitor.peak_memory_bytes(),
        energy_joules=monitor.energy_joules(ended.decode_seconds + work.prefill_seconds, ended.decode_seconds),
    )
    summary.MergeFrom(frame_codec.totals_to_proto(totals))
    return summary
