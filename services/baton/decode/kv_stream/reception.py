"""What is known of one KV stream as it arrives: how long the link was busy, and how much of that showed."""

from __future__ import annotations

from dataclasses import dataclass

from baton.kv.kv_format import WireFormat
from baton.kv.stream import KvFrame
from baton.telemetry.metrics import Transport
from baton.v1.generation_pb2 import KvFrameTiming, KvTimeline, PlacementSummary
from baton.wire.kv import dtype_to_proto

MAX_FRAMES = 1024
"""Frames of a timeline; later ones are left out."""


@dataclass(slots=True)
class ReceptionClock:
    """Arrival times of one stream on this node's clock, seconds.

    The sender's clock reads 0 when it sends the layout, so `layout_arrived - half a round trip` is that moment here,
    and a frame that was ready at `r` there could have begun its way at `origin + r`. The link is busy with it from
    then, or from the arrival of the frame before, until it arrives.
    """

    called: float
    """When the call was made."""
    origin: float = 0.0
    """The sender's 0."""
    last_arrival: float = 0.0
    """When the last frame arrived."""
    computed: float = 0.0
    """When the sender had the first token; 0: not known yet."""
    busy_seconds: float = 0.0
    """Time that the link was busy with frames."""

    def layout_arrived(self, now: float) -> None:
        """Set the sender's 0 from the round trip of the call."""
        self.origin = now - (now - self.called) / 2
        self.last_arrival = self.origin

    def frame_arrived(self, now: float, ready_seconds: float) -> None:
        """Enter a frame that the sender had ready at `ready_seconds`."""
        self.busy_seconds += max(0.0, now - self.way_began(ready_seconds))
        self.last_arrival = now

    def way_began(self, ready_seconds: float) -> float:
        """Return when the link was there for the frame that has just come and was ready at `ready_seconds`."""
        return max(self.last_arrival, self.origin + ready_seconds)

    def summary_arrived(self, compute_ended_seconds: float) -> None:
        """Set when the sender had computed everything, on its clock."""
        self.computed = self.origin + compute_ended_seconds

    @property
    def exposed_seconds(self) -> float:
        """Return the time for which frames still arrived when all was computed: what computation did not hide."""
        return max(0.0, self.last_arrival - self.computed) if self.computed else 0.0


@dataclass(slots=True)
class Reception:
    """What is known of one KV stream."""

    clock: ReceptionClock
    """Arrival times."""
    num_bytes: int = 0
    """Payload bytes."""
    num_frames: int = 0
    """Frames."""
    prefill_cached_tokens: int = 0
    """Positions that the sender took from its prefix cache."""
    queue_seconds: float = 0.0
    """Time that the request waited at the sender."""
    compute_seconds: float = 0.0
    """Time that the sender computed."""
    prefill_peak_memory_bytes: int = 0
    """Peak memory of the sender's process; 0: not known."""
    prefill_energy_joules: float | None = None
    """Energy that the sender's machine drew meanwhile; None: not known."""
    wire: WireFormat | None = None
    """In what K and V came; None: not known yet."""
    transport: Transport = "grpc"
    """What carried it."""
    transport_reason: str = ""
    """Why the fast path did not, although it could have been used; empty: it did, or was ruled out."""
    timeline: FrameTimeline | None = None
    """Its frames in time; None: not wanted."""

    def describe(self, summary: PlacementSummary) -> None:
        """Add to a summary what came, and in what."""
        summary.kv_byte_count, summary.kv_frame_count = self.num_bytes, self.num_frames
        if self.wire is not None:
            summary.key_wire_dtype = dtype_to_proto(self.wire.keys)
            summary.value_wire_dtype = dtype_to_proto(self.wire.values)


class FrameTimeline:
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
