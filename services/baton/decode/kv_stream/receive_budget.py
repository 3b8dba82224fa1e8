"""Memory for KV that arrives: bounded over all streams of a node, whose frames are as large as their number allows."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from baton.capacity.prefix_reuse import MAX_FRAME_BYTES
from baton.engine.request import EXPORT_TOKENS
from baton.kv.kv_format import KvLayout

log = logging.getLogger(__name__)

LEAST_FRAME_BYTES = 64 << 10
"""Smaller frames cost more in headers and wake-ups than they save."""
_FRAMES_PER_STREAM = 4
"""Frames of a stream that no credit counts: on the way, arriving, arrived, and waiting for credit."""
_UNCOUNTED_PARTS, _IDLE_PARTS = 2, 8
"""Of all that arrives half is for frames without credit, and an eighth for memory between two frames."""
_STREAMS_AT_ONCE = 4
"""One stream that lands slowly leaves credit to others."""
_LOOK_SECONDS = 0.1
"""Pause between two looks at what memory is left: one takes up to a millisecond."""


def receive_bytes_for(num_streams: int, frame_bytes: int) -> int:
    """Return what so many streams need for frames of a size."""
    return _UNCOUNTED_PARTS * num_streams * _FRAMES_PER_STREAM * frame_bytes


class FrameShape(NamedTuple):
    """How K and V are cut into frames."""

    layers_per_frame: int
    """Layers of one frame at most; 0: one."""
    chunk_tokens: int = 0
    """Positions computed, and sent, at once; 0: any."""


class ReceiveBudget:
    """Credit for frames that have arrived and are not in blocks yet. Used on the event loop only.

    Invariant: frames with credit have `max_bytes` together at most, or one alone has more: it could never land
    otherwise. Streams get credit in the order in which they ask, so none is passed over for ever. There are
    `num_bytes`, 1 or more, for all that arrives. `judge` tells whether the machine's memory is short, of which other
    nodes have budgets too: frames above four have no credit then.
    """

    def __init__(self, num_bytes: int, num_streams: int, judge: Callable[[], bool] = lambda: False) -> None:
        self._judge = judge
        self._looked_at, self._is_short = 0.0, False
        self.idle_bytes = num_bytes // _IDLE_PARTS
        """Memory that may be kept for frames to come."""
        self.max_bytes = num_bytes - num_bytes // _UNCOUNTED_PARTS - self.idle_bytes
        self.stream_bytes = self.max_bytes // _STREAMS_AT_ONCE
        """Credit of one stream at most, unless a frame alone has more."""
        frame_bytes = num_bytes // (_UNCOUNTED_PARTS * num_streams * _FRAMES_PER_STREAM)
        self.frame_bytes = min(MAX_FRAME_BYTES, max(LEAST_FRAME_BYTES, frame_bytes))
        """Largest frame that senders are asked for, and what of a stream may be on its way."""
        self.num_bytes = 0
        """Bytes with credit."""
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()
        self.heard: deque[tuple[float, float]] = deque(maxlen=64)
        """Of the last frames, when their stream was called, and when they came; `time.perf_counter`."""

    def heard_seconds(self, called: float) -> float:
        """Return how long ago the last frame came of a stream that was called before; infinity if none is known."""
        return time.perf_counter() - next((came for other, came in reversed(self.heard) if other < called), -math.inf)

    async def take(self, num_bytes: int) -> bool:
        """Wait for credit; return whether it had to be waited for."""
        if not self._waiting and self._fits(num_bytes):
            self.num_bytes += num_bytes
            return False
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        entry = (num_bytes, turn)
        self._waiting.append(entry)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.give_back(num_bytes)
            elif entry in self._waiting:  # else `_serve` has met it
                self._waiting.remove(entry)
                self._serve()
            raise
        return True

    def give_back(self, num_bytes: int) -> None:
        """Give credit back: frames are in blocks, or gone."""
        self.num_bytes -= num_bytes
        self._serve()

    def frames_of(self, layout: KvLayout, wanted: FrameShape) -> FrameShape:
        """Return the shape of frames that keeps them to their size, where that can be."""
        if self.frame_bytes >= MAX_FRAME_BYTES:
            return wanted
        token_bytes = max(spec.num_token_elements for spec in layout.layers) * layout.dtype.num_bytes
        most_tokens = max(1, self.frame_bytes // token_bytes)
        chunk_tokens = min(wanted.chunk_tokens or most_tokens, most_tokens)
        most_layers = self.frame_bytes // (token_bytes * max(EXPORT_TOKENS, chunk_tokens))
        return FrameShape(max(1, min(wanted.layers_per_frame, most_layers)), chunk_tokens)

    def _fits(self, num_bytes: int) -> bool:
        wanted = self.num_bytes + num_bytes
        if not self.num_bytes:
            return True
        if wanted > self.max_bytes:
            return False
        return wanted <= _FRAMES_PER_STREAM * self.frame_bytes or not self._is_memory_short()

    def _is_memory_short(self) -> bool:
        now = time.monotonic()
        if now - self._looked_at >= _LOOK_SECONDS:
            was_short, self._looked_at, self._is_short = self._is_short, now, self._judge()
            if self._is_short and not was_short:
                log.warning("receiving_slowly cause='memory is short'")
        return self._is_short

    def _serve(self) -> None:
        while self._waiting and self._fits(self._waiting[0][0]):
            num_bytes, turn = self._waiting.popleft()
            if not turn.done():
                self.num_bytes += num_bytes
                turn.set_result(None)
