"""What is measured of a request: how its KV came, what its parts took, and the summary in which it is told."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field

from baton.engine.events import Ended
from baton.internal.v1 import decode_service_pb2 as messages
from baton.kv.kv_format import WireFormat
from baton.kv.stream import KvFrame
from baton.node.sensors.monitor import NodeMonitor
from baton.telemetry import names
from baton.telemetry.metrics import Metrics, Transport
from baton.v1 import generation_pb2
from baton.v1.generation_pb2 import KvFrameTiming, KvTimeline, PlacementSummary
from baton.wire.kv import dtype_to_proto
from baton.wire.quantities import duration_from_seconds, seconds_from_duration

MAX_FRAMES = 1024
"""Frames of a timeline; later ones are left out."""
MAX_ARRIVALS = 256
"""Frames of a link remembered: those that come while another stream's first one waits for its turn."""
MAX_SPANS = 16
"""Times remembered in which a link was busy: about as many as there are streams with a frame on its way."""
_CLOCK_DRIFT = 1e-4
"""Of two machines' clocks, seconds per second: twice what quartz has."""
_REASONS = {"stop": generation_pb2.FINISH_REASON_STOP, "length": generation_pb2.FINISH_REASON_LENGTH}


def local_summary(request: messages.DecodeServiceGenerateRequest, ended: Ended, node_id: str) -> PlacementSummary:
    """Return what happened to a request, as if nothing of it had come from another node."""
    return PlacementSummary(
        decode_node_id=node_id,
        prefill_node_id=node_id,
        placement_id=request.placement.placement_id,
        decode_cached_token_count=ended.prompt_work.num_cached_tokens,
        queue_duration=duration_from_seconds(ended.prompt_work.queue_seconds),
        prefill_duration=duration_from_seconds(ended.prompt_work.prefill_seconds),
        decode_duration=duration_from_seconds(ended.decode_seconds),
        join_duration=duration_from_seconds(ended.join_seconds),
        mean_batch_size=ended.mean_batch_size,
        preemption_count=ended.num_preemptions,
        shared_token_count=ended.prompt_work.num_shared_tokens,
        completion_token_count=ended.num_output_tokens - len(request.output_token_ids),
    )


def measure_resources(summary: PlacementSummary, reception: Reception | None, monitor: NodeMonitor) -> None:
    """Add memory and energy to the summary of a request that has just ended."""
    summary.decode_peak_memory_byte_count = monitor.peak_memory_bytes()
    decode_seconds = seconds_from_duration(summary.decode_duration)
    decode_energy = monitor.energy_joules(decode_seconds)
    if summary.prefill_node_id != summary.decode_node_id and reception is not None:
        summary.prefill_peak_memory_byte_count = reception.prefill_peak_memory_bytes
        prefill_energy = reception.prefill_energy_joules
    else:
        prefill_seconds = seconds_from_duration(summary.prefill_duration)
        prefill_energy = monitor.energy_joules(decode_seconds + prefill_seconds, decode_seconds)
    if decode_energy is not None:
        summary.decode_energy_joules = decode_energy
    if prefill_energy is not None:
        summary.prefill_energy_joules = prefill_energy


def count_prompt(metrics: Metrics, ended: Ended, summary: PlacementSummary, reception: Reception | None) -> None:
    """Count where a prompt was computed, and what the transfer of its KV took; the request has just ended."""
    metrics.add(names.PREEMPTIONS, ended.num_preemptions)
    if summary.prefill_node_id != summary.decode_node_id and reception is not None:
        metrics.add(names.KV_BYTES, summary.kv_byte_count, {names.KV_TRANSPORT: reception.transport})
        metrics.record(names.KV_TRANSFER, reception.clock.busy_seconds)
        metrics.record(names.EXPOSED_TRANSFER, reception.clock.exposed_seconds)
        side = {names.SIDE: "prefill"}
        num_cached = min(summary.prefill_cached_token_count, ended.num_prompt_tokens)
    else:
        side = {names.SIDE: "decode"}
        num_received = summary.kv_kept_token_count + summary.pulled_token_count
        num_cached = min(ended.prompt_work.num_cached_tokens + num_received, ended.num_prompt_tokens)
    num_computed = max(0, ended.num_prompt_tokens - num_cached - ended.prompt_work.num_shared_tokens)
    metrics.add(names.CACHED_PROMPT_TOKENS, num_cached, side)
    metrics.add(names.COMPUTED_PROMPT_TOKENS, num_computed, side)
    metrics.add(names.SHARED_PROMPT_TOKENS, ended.prompt_work.num_shared_tokens)


def finished_message(
    ended: Ended, summary: PlacementSummary, request: messages.DecodeServiceGenerateRequest, reception: Reception | None
) -> messages.Finished:
    """Return the message that ends a generation, with the timeline of KV frames if the request wanted one."""
    usage = generation_pb2.Usage(
        prompt_token_count=ended.num_prompt_tokens,
        cached_token_count=max(
            summary.decode_cached_token_count + summary.pulled_token_count, summary.prefill_cached_token_count
        ),
        completion_token_count=ended.num_output_tokens,
        seed=request.sampling.seed,
    )
    finished = messages.Finished(reason=_REASONS[ended.reason], usage=usage, summary=summary)
    if ended.stop_token_id is not None:
        finished.stop_token_id = ended.stop_token_id
    if reception is not None and reception.timeline is not None:
        finished.summary.kv_timeline.CopyFrom(reception.timeline.to_proto(reception.clock.computed))
    return finished


@dataclass(slots=True)
class Reception:
    """What is known of one KV stream."""

    clock: ReceptionClock
    num_bytes: int = 0
    """Payload bytes."""
    num_frames: int = 0
    prefill_cached_tokens: int = 0
    """Positions that the sender took from its prefix cache."""
    prefill_shared_tokens: int = 0
    """Positions after them that another request computed at the sender meanwhile."""
    queue_seconds: float = 0.0
    """Time that the request waited at the sender."""
    compute_seconds: float = 0.0
    """Time that its own computation took there."""
    prefill_peak_memory_bytes: int = 0
    """Peak memory of the sender's process; 0: not known."""
    prefill_energy_joules: float | None = None
    """Energy that the sender's machine drew meanwhile; None: not known."""
    wire: WireFormat | None = None
    """In what K and V came; None: not known yet."""
    transport: Transport = "grpc"
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


@dataclass(slots=True)
class LinkMeter:
    """What the link from a node has carried, for whichever streams, and how long it was busy: a moment counts once."""

    num_bytes: int = 0
    """Bytes of frames."""
    busy_seconds: float = 0.0
    """Time for which at least one was on its way."""
    spans: list[tuple[float, float]] = field(default_factory=list)
    """These times, disjoint, the last ones: a frame may arrive that was on its way before others came and went."""
    arrivals: deque[tuple[float, int, float]] = field(default_factory=lambda: deque([(0.0, 0, 0.0)], MAX_ARRIVALS))
    """When the last frames came, and what bytes and time were then."""
    apart: tuple[float, float] = (-math.inf, math.inf)
    """Least and most that the sender's clock is behind this one, seconds; `told_at`: when that was told."""
    told_at: float = 0.0

    def moment_of(self, sender_seconds: float, called: float, now: float) -> float:
        """Return when it was here what the sender's clock read, which was between a call and its answer.

        A call may take most of that on its way, or its answer; the quickest of both, of all calls, tell more.
        """
        drift = _CLOCK_DRIFT * (now - self.told_at)
        least = max(self.apart[0] - drift, called - sender_seconds)
        most = min(self.apart[1] + drift, now - sender_seconds)
        if least > most:  # another clock: the machine has begun anew
            least, most = called - sender_seconds, now - sender_seconds
        self.apart, self.told_at = (least, most), now
        return sender_seconds + (least + most) / 2

    def totals_at(self, moment: float) -> tuple[int, float]:
        """Return bytes and time of the frames that had come by a moment, or by the first that is remembered."""
        known = next((each for each in reversed(self.arrivals) if each[0] <= moment), self.arrivals[0])
        return known[1:]

    def frame_arrived(self, way_began: float, now: float, num_bytes: int) -> None:
        """Enter a frame for which the link was there at `way_began`, as far as its own stream can tell."""
        met = [(begin, end) for begin, end in self.spans if end >= way_began]
        self.busy_seconds += max(0.0, now - way_began) - sum(end - max(begin, way_began) for begin, end in met)
        del self.spans[len(self.spans) - len(met) :]
        self.spans = [*self.spans[-MAX_SPANS:], (min([way_began, *(begin for begin, _ in met)]), now)]
        self.num_bytes += num_bytes
        self.arrivals.append((now, self.num_bytes, self.busy_seconds))


@dataclass(slots=True)
class ReceptionClock:
    """Arrival times of one stream on this node's clock, seconds.

    The sender's times count from when the request arrived, a moment that its link tells of (`LinkMeter.moment_of`), and
    no frame arrives before it was ready: where one seems to, the moment was earlier. A frame that was ready at `r`
    there could have begun its way at `origin + r`. It is on its way from then, or from the arrival of the frame before,
    until it arrives; not while this node holds it back for want of room. The stream is charged for its bytes at the
    rate at which the link carried those of all streams meanwhile: what shares the link costs it time, and is no part of
    what the link needs for it.
    """

    called: float
    origin: float = 0.0
    """The sender's 0."""
    last_arrival: float = 0.0
    free_since: float = 0.0
    """When this node last had room again for a frame that it had held back; 0: it never held one back."""
    computed: float = 0.0
    """When the sender had the first token; 0: not known yet."""
    busy_seconds: float = 0.0
    """Time that the link was busy with frames."""
    link: LinkMeter = field(default_factory=LinkMeter)
    num_bytes: int = 0
    before: tuple[int, float] | None = None
    """Bytes and time of the link when the first frame's way began; None: none has come."""
    earlier_seconds: float = 0.0
    """`busy_seconds` of streams before, which broke."""

    def begin(self, link: LinkMeter) -> None:
        """Begin a stream over a link; what earlier ones took stays."""
        self.link, self.before, self.num_bytes, self.earlier_seconds = link, None, 0, self.busy_seconds

    def layout_arrived(self, now: float, sender_seconds: float = 0.0) -> None:
        """Set the sender's 0, at which its clock read `sender_seconds`; 0: it does not say."""
        middle = (self.called + now) / 2
        self.origin = self.link.moment_of(sender_seconds, self.called, now) if sender_seconds else middle
        self.last_arrival = self.origin

    def frame_arrived(self, now: float, ready_seconds: float, num_bytes: int) -> float:
        """Enter a frame that the sender had ready at `ready_seconds`; return when its way began."""
        self.origin = min(self.origin, now - ready_seconds)
        way_began = max(self.last_arrival, self.free_since, self.origin + ready_seconds)
        link = self.link
        bytes_before, seconds_before = self.before = self.before or link.totals_at(way_began)
        link.frame_arrived(way_began, now, num_bytes)
        self.num_bytes += num_bytes
        share = self.num_bytes / max(1, link.num_bytes - bytes_before)
        self.busy_seconds = self.earlier_seconds + share * (link.busy_seconds - seconds_before)
        self.last_arrival = now
        return way_began

    def summary_arrived(self, compute_ended_seconds: float) -> None:
        """Set when the sender had computed everything, on its clock."""
        self.computed = self.origin + compute_ended_seconds

    @property
    def exposed_seconds(self) -> float:
        """Return the time for which frames still arrived when all was computed: what computation did not hide."""
        return max(0.0, self.last_arrival - self.computed) if self.computed else 0.0


class FrameTimeline:
    """Collects times of this node's clock."""

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
        """Return the message. `computed` is when the sender had computed everything, seconds; 0: not known."""
        return KvTimeline(frames=self._frames, computed_micros=self._micros(computed) if computed else 0)

    def _micros(self, seconds: float) -> int:
        return max(0, round(1e6 * (seconds - self._began)))
