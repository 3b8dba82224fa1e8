"""What the first rank tells the others to do; they do it in the same order, for their own heads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from baton.engine.runners.base import LayerKv, Span
from baton.engine.runners.drawing import Draws


class Forward(NamedTuple):
    """Compute a pass; send the layers of spans that are handed over."""

    spans: list[Span]
    """Without sinks."""
    handed_over: list[bool]
    """Which of them have one."""


class Launch(NamedTuple):
    """Begin a pass as `CudaGraphRunner.launch_at` does."""

    forward: Forward
    rows: list[int] | None
    draws: Draws | None
    is_following: bool
    num_steps: int


class CopyBlock(NamedTuple):
    """Copy a block."""

    source: int
    target: int


class WriteKv(NamedTuple):
    """Write K and V of the rank's heads."""

    block_table: list[int]
    layer: int
    start: int
    num_tokens: int
    keys: bytes
    values: bytes


class ReadKv(NamedTuple):
    """Send K and V of the rank's heads."""

    block_table: list[int]
    layer: int
    start: int
    num_tokens: int


Order = Forward | Launch | CopyBlock | WriteKv | ReadKv
"""Anything that a rank is told; the end of the connection tells it to end."""


def split_heads(kv: LayerKv, size: int) -> list[LayerKv]:
    """Return each rank's heads: they come first in the bytes, so that a share is a slice."""
    shares = []
    for rank in range(size):
        parts = []
        for buffer in kv:
            share = len(buffer) // size
            parts.append(memoryview(buffer)[rank * share : (rank + 1) * share])
        shares.append(LayerKv(*parts))
    return shares


def join_heads(shares: Sequence[LayerKv]) -> LayerKv:
    """Return K and V of all heads, of the shares in order of ranks."""
    return LayerKv(b"".join(share.keys for share in shares), b"".join(share.values for share in shares))
