"""KV streams that share a network card, a link or the way into a device's memory with a further one. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple


class Stream(NamedTuple):
    """KV on its way, or about to be; what is not computed yet is taken to be so evenly over a time."""

    num_ready_bytes: float
    """What is computed and not sent."""
    num_later_bytes: float
    """What is computed later."""
    begin_seconds: float
    """When that begins, from now on; 0 or more."""
    end_seconds: float
    """When all is computed, from now on; `begin_seconds` or later."""
    sender_id: str
    """Node that sends it."""
    receiver_id: str
    """Node that takes it in."""


def slowdown(
    num_bytes: float, bytes_per_second: float, begin_seconds: float, compute_seconds: float, streams: Sequence[Stream]
) -> float:
    """Return by what a stream takes longer over a resource than if it had it alone, 1 or more.

    Streams that have something to carry share the resource evenly, so one waits for no more of each other than it
    carries itself. A stream that is computed more slowly than the resource carries (its share s of the rate) leaves
    the rest to the others, and meets s / (1 - s) of what they carry. What the resource carries of theirs before it
    begins is not met.

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
    early = _computed_bytes(streams, begin_seconds)
    num_early_bytes = sum(early)
    left = max(0.0, 1 - bytes_per_second * begin_seconds / num_early_bytes) if num_early_bytes else 0.0
    waiting_seconds = 0.0
    for _ in range(2):  # the longer it takes, the more it meets
        end_seconds = begin_seconds + window_seconds + waiting_seconds
        num_met_bytes = 0.0
        for num_computed, num_early in zip(_computed_bytes(streams, end_seconds), early, strict=True):
            num_carried = num_early * left + num_computed - num_early
            num_met_bytes += num_bytes if num_carried > num_bytes else num_carried
        if not num_met_bytes:
            break
        waiting_seconds = met * num_met_bytes / bytes_per_second
    return 1.0 + waiting_seconds / alone_seconds


def least_rate(
    num_bytes: float,
    begin_seconds: float,
    compute_seconds: float,
    resources: Iterable[tuple[float, Sequence[Stream]]],
) -> float:
    """Return the rate of a stream over several resources at once: of the one that leaves it least.

    A resource that would leave more even if every stream on it carried as much as this one is passed over.

    Args:
        num_bytes: Of the stream; 0 or more.
        begin_seconds: When its first byte is ready, from now on.
        compute_seconds: Time over which its bytes become ready.
        resources: Rate of each, 0 if it is not known, and what else uses it. One rate is known.
    """
    least = math.inf
    for rate, streams in resources:
        if rate and rate / (1 + len(streams)) < least:
            shared = rate / slowdown(num_bytes, rate, begin_seconds, compute_seconds, streams)
            least = min(least, shared)
    return least


def _computed_bytes(streams: Sequence[Stream], seconds: float) -> list[float]:
    """Return what is computed of each stream by a moment, from now on, and not sent now."""
    return [
        ready + later
        if seconds >= end
        else ready
        if seconds <= begin
        else ready + later * ((seconds - begin) / (end - begin))
        for ready, later, begin, end, _, _ in streams
    ]
