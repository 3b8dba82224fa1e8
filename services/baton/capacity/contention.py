"""KV streams that share a network card, a link or the way into a device's memory with a further one. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Stream(NamedTuple):
    """KV on its way, or about to be: its bytes are taken to come evenly over its time."""

    begin_seconds: float
    """When it begins, from now on; negative: it has begun."""
    end_seconds: float
    """When its last byte comes, from now on; after it begins."""
    num_bytes: int
    """All of it."""
    sender_id: str
    """Node that sends it."""
    receiver_id: str
    """Node that takes it in."""


class Competition(NamedTuple):
    """What streams carry in some time."""

    num_bytes: float
    """All of them together."""
    num_streams: int
    """How many carry anything."""


def competition(streams: Sequence[Stream], begin_seconds: float, end_seconds: float) -> Competition:
    """Return what streams carry from one moment to another."""
    num_bytes, num_streams = 0.0, 0
    for stream in streams:
        shared = min(stream.end_seconds, end_seconds) - max(stream.begin_seconds, begin_seconds)
        if shared > 0:
            num_bytes += stream.num_bytes * shared / (stream.end_seconds - stream.begin_seconds)
            num_streams += 1
    return Competition(num_bytes, num_streams)


def slowdown(
    num_bytes: float, bytes_per_second: float, begin_seconds: float, compute_seconds: float, streams: Sequence[Stream]
) -> float:
    """Return by what a stream takes longer over a resource than if it had it alone, 1 or more.

    Streams that have something to carry share the resource evenly, so one waits for no more of each other than it
    carries itself. A stream that is computed more slowly than the resource carries (its share s of the rate) leaves
    the rest to the others, and meets s / (1 - s) of what they carry.

    Args:
        num_bytes: Of the stream; 0 or more.
        bytes_per_second: Rate of the resource, above 0.
        begin_seconds: When its first byte is ready, from now on.
        compute_seconds: Time over which its bytes become ready.
        streams: What else uses the resource.
    """
    if not streams or num_bytes <= 0:
        return 1.0
    alone_seconds = num_bytes / bytes_per_second
    window_seconds = max(alone_seconds, compute_seconds)
    share = alone_seconds / window_seconds
    met = min(1.0, share / (1 - share)) if share < 1 else 1.0
    waiting_seconds = 0.0
    for _ in range(2):  # the longer it takes, the more it meets
        others = competition(streams, begin_seconds, begin_seconds + window_seconds + waiting_seconds)
        if not others.num_streams:
            break
        waiting_seconds = min(met * others.num_bytes, others.num_streams * num_bytes) / bytes_per_second
    return 1.0 + waiting_seconds / alone_seconds
