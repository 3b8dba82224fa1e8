"""KV that enters and leaves an engine's blocks outside a pass."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from baton.engine.runners.base import LayerKv, Runner
from baton.engine.sequence import Sequence
from baton.kv.stream import KvFrame

EXPORT_TOKENS = 512
"""Cached positions handed out at once, so that no frame grows with the prompt."""


class KvPiece(NamedTuple):
    """Consecutive positions of one layer of a frame; what `Runner.write_kv` takes after the block table."""

    layer: int
    """Layer."""
    start: int
    """First position."""
    num_tokens: int
    """Positions, 1 or more."""
    kv: LayerKv
    """Their K and V."""

    @property
    def num_bytes(self) -> int:
        """Return the size of K and V."""
        return len(self.kv.keys) + len(self.kv.values)


class FrameCursor:
    """How far a received frame has been written: layer by layer, in pieces that end where blocks do.

    Args:
        frame: The frame, in the cache's own number format.
        num_kv_heads: KV heads of each of its layers.
        block_tokens: Positions of a block.
    """

    def __init__(self, frame: KvFrame, num_kv_heads: int, block_tokens: int) -> None:
        self._frame = frame
        self._num_kv_heads = num_kv_heads
        self._block_tokens = block_tokens
        self._layer_bytes = (len(frame.keys) + len(frame.values)) // frame.num_layers
        self._index = 0  # of the layer in the frame
        self._offset = 0  # positions of it that are written

    @property
    def is_complete(self) -> bool:
        """Return whether nothing is left."""
        return self._index == self._frame.num_layers

    def next_piece(self, max_bytes: float, *, must: bool) -> KvPiece | None:
        """Take the next piece: as much of a layer as fits, in whole blocks.

        Args:
            max_bytes: Its size at most.
            must: Whether the smallest piece is taken where none fits.

        Returns:
            None if no piece fits and none must be taken.
        """
        frame, offset = self._frame, self._offset
        num_tokens = self._num_fitting(max_bytes)
        if not num_tokens:
            if not must:
                return None
            num_tokens = self._end_of_blocks(1) - offset
        layer, kv = frame.layer_begin + self._index, self._layer()
        if num_tokens < frame.num_tokens:
            kv = LayerKv(self._cut(kv.keys, num_tokens), self._cut(kv.values, num_tokens))
        self._offset += num_tokens
        if self._offset == frame.num_tokens:
            self._index, self._offset = self._index + 1, 0
        return KvPiece(layer, frame.token_begin + offset, num_tokens, kv)

    def _num_fitting(self, max_bytes: float) -> int:
        """Return how many positions fit: to the end of the layer, or of a block."""
        frame = self._frame
        left, token_bytes = frame.num_tokens - self._offset, self._layer_bytes / frame.num_tokens
        if left * token_bytes <= max_bytes:
            return left
        end = frame.token_begin + self._offset + int(max_bytes / token_bytes)
        return max(0, end - end % self._block_tokens - frame.token_begin - self._offset)

    def _end_of_blocks(self, num_blocks: int) -> int:
        """Return the offset at which blocks from the current position on end."""
        frame = self._frame
        end = (frame.token_begin + self._offset) // self._block_tokens + num_blocks
        return min(frame.num_tokens, end * self._block_tokens - frame.token_begin)

    def _layer(self) -> LayerKv:
        """Return K and V of the current layer."""
        frame, index = self._frame, self._index
        key_bytes, value_bytes = len(frame.keys) // frame.num_layers, len(frame.values) // frame.num_layers
        return LayerKv(
            memoryview(frame.keys)[index * key_bytes : (index + 1) * key_bytes],
            memoryview(frame.values)[index * value_bytes : (index + 1) * value_bytes],
        )

    def _cut(self, data: bytes | memoryview, num_tokens: int) -> memoryview:
        """Return positions of a layer's keys or values, [num_kv_heads, num_tokens, head_dim], one after the other."""
        rows = np.frombuffer(data, np.uint8).reshape(self._num_kv_heads, self._frame.num_tokens, -1)
        return np.ascontiguousarray(rows[:, self._offset : self._offset + num_tokens]).data.cast("B")


def export_cached(runner: Runner, sequence: Sequence) -> None:
    """Hand out the KV that is in the prefix cache and that the caller lacks: [kv_token_begin, num_computed)."""
    request = sequence.request
    if request.export is None or request.kv_token_begin >= sequence.num_computed:
        return
    for start in range(request.kv_token_begin, sequence.num_computed, EXPORT_TOKENS):
        num_tokens = min(EXPORT_TOKENS, sequence.num_computed - start)
        for layer in range(runner.info.layout.num_layers):
            request.export(start, layer, runner.read_kv(sequence.block_table, layer, start, num_tokens))
