"""The frames of a request's KV in time, for pictures of how far computation hid their way."""

from __future__ import annotations

from baton.kv.stream import KvFrame
from baton.v1.generation_pb2 import KvFrameTiming, KvTimeline

MAX_FRAMES = 1024
"""Frames of a timeline; later ones are left out."""


class Timeline:
    """Collects times of this node's clock.

    Args:
        began: When the KV was called for, seconds.
    """

    def __init__(self, began: float) -> None:
        self._began = began
        self._frames: list[KvFrameTiming] = []

    def add(self, frame: KvFrame, ready: float, arrived: float) -> None:
        """Enter a frame that the sender had at `ready` and that came at `arrived`, in seconds."""
        if len(self._frames) < MAX_FRAMES:
            timing = KvFrameTiming(
                layer_begin=frame.layer_begin,
                layer_count=frame.num_layers,
                token_begin=frame.token_begin,
                token_count=frame.num_tokens,
                byte_count=frame.num_bytes,
                ready_micros=self._micros(ready),
                arrived_micros=self._micros(arrived),
            )
            self._frames.append(timing)

    def to_proto(self, computed: float) -> KvTimeline:
        """Return the message.

        Args:
            computed: When the sender had computed everything, seconds; 0: not known.
        """
        return KvTimeline(frames=self._frames, computed_micros=self._micros(computed) if computed else 0)

    def _micros(self, seconds: float) -> int:
        return max(0, round(1e6 * (seconds - self._began)))
