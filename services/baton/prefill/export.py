"""Turns the layers of a running computation into KV frames. Runs in the engine's thread, and never waits."""

from __future__ import annotations

import time
from collections.abc import Callable

from baton.engine.runners.base import LayerKv
from baton.kv.layout import KvLayout, LayerSpec
from baton.kv.stream import KvFrame, frame_groups


class FrameExport:
    """Groups consecutive layers of a pass into frames and hands each on when its last layer is there.

    Positions already exported are dropped, so that a request computed again after a preemption sends nothing twice.

    Args:
        layout: Shape of the cache.
        token_begin: First position to export.
        layers_per_frame: Layers of one frame, 1 or more.
        put: Takes a finished frame; called from the engine's thread.
        clock: Seconds, monotonic; frames carry the time since construction.
    """

    def __init__(
        self,
        layout: KvLayout,
        token_begin: int,
        layers_per_frame: int,
        put: Callable[[KvFrame], None],
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._layout = layout
        self._next_token = [token_begin] * layout.num_layers
        self._group_of = {group.stop - 1: group for group in frame_groups(layout, layers_per_frame)}
        self._pending: list[LayerKv] = []
        self._put = put
        self._clock = clock
        self._started = clock()

    def __call__(self, start: int, layer: int, kv: LayerKv) -> None:
        """Take K and V of one layer for the positions from `start`."""
        spec = self._layout.layers[layer]
        num_tokens = len(kv.keys) // (spec.num_kv_heads * spec.key_head_dim * self._layout.dtype.num_bytes)
        num_sent = max(0, self._next_token[layer] - start)
        if num_sent >= num_tokens:
            return
        self._next_token[layer] = start + num_tokens
        self._pending.append(self._without_sent(kv, spec, num_tokens, num_sent))
        group = self._group_of.get(layer)
        if group is not None:
            pending, self._pending = self._pending, []
            self._put(
                KvFrame(
                    layer_begin=group.start,
                    num_layers=len(group),
                    token_begin=start + num_sent,
                    num_tokens=num_tokens - num_sent,
                    keys=_joined([kv.keys for kv in pending]),
                    values=_joined([kv.values for kv in pending]),
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
