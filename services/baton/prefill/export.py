"""Turns the layers of a running computation into KV frames. Runs in the engine's thread, and never waits."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

from baton.engine.runners.base import LayerKv
from baton.kv.layout import KvLayout, LayerSpec
from baton.kv.progress import KvProgress
from baton.kv.stream import KvFrame, frame_groups


class _Piece(NamedTuple):
    """One layer's share of a frame."""

    layer: int
    positions: range
    kv: LayerKv


class FrameExport:
    """Groups consecutive layers of a pass into frames and hands each on when its last layer is there.

    Positions that are not owed, or exported already, are dropped: a request computed again after a preemption sends
    nothing twice, and a resumed stream begins in each layer where the broken one ended.

    Args:
        layout: Shape of the cache.
        owed: What to export.
        layers_per_frame: Layers of one frame at most, 1 or more.
        put: Takes a finished frame; called from the engine's thread.
        clock: Seconds, monotonic; frames carry the time since construction.
    """

    def __init__(
        self,
        layout: KvLayout,
        owed: KvProgress,
        layers_per_frame: int,
        put: Callable[[KvFrame], None],
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._layout = layout
        self._next_token = list(owed.next_tokens)
        self._last_layers = frozenset(group.stop - 1 for group in frame_groups(layout, layers_per_frame))
        self._pieces: list[_Piece] = []
        self._put = put
        self._clock = clock
        self._started = clock()

    def __call__(self, start: int, layer: int, kv: LayerKv) -> None:
        """Take K and V of one layer for the positions from `start`."""
        spec = self._layout.layers[layer]
        num_tokens = len(kv.keys) // (spec.num_kv_heads * spec.key_head_dim * self._layout.dtype.num_bytes)
        num_sent = max(0, self._next_token[layer] - start)
        if num_sent < num_tokens:
            self._next_token[layer] = start + num_tokens
            unsent = self._without_sent(kv, spec, num_tokens, num_sent)
            self._add(_Piece(layer, range(start + num_sent, start + num_tokens), unsent))
        if layer in self._last_layers:
            self._flush()

    def _add(self, piece: _Piece) -> None:
        """Add to the frame that gathers; a layer that does not follow its last, or other positions, begin another."""
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
            KvFrame(
                layer_begin=first.layer,
                num_layers=len(pieces),
                token_begin=first.positions.start,
                num_tokens=len(first.positions),
                keys=_joined([piece.kv.keys for piece in pieces]),
                values=_joined([piece.kv.values for piece in pieces]),
                ready_seconds=self._clock() - self._started,
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


def _joined(buffers: list[bytes | memoryview]) -> bytes | memoryview:
    """Return the buffers one after the other; a single one as it is."""
    return buffers[0] if len(buffers) == 1 else b"".join(buffers)


def _cut_tokens(data: bytes | memoryview, num_heads: int, num_tokens: int, num_cut: int, row_bytes: int) -> bytes:
    head_bytes = num_tokens * row_bytes
    view = memoryview(data)
    return b"".join(
        view[head * head_bytes + num_cut * row_bytes : (head + 1) * head_bytes] for head in range(num_heads)
    )
