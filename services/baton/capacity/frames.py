"""In what frames KV travels: how many layers each has, and how many positions are computed in one pass. Pure."""

from __future__ import annotations

import math
from typing import NamedTuple

from baton.capacity import cost

MIN_CHUNK_TOKENS = 256
"""Shortest chunk that is chosen: matrix units of accelerators are not full below it."""
LEAST_GAIN = 0.01
"""Share of the time until decoding can begin that shorter chunks must save: they cost other requests passes."""


class FramePlan(NamedTuple):
    """Frames of one prompt."""

    layers_per_frame: int
    """Layers of one frame, 1 or more."""
    chunk_tokens: int
    """Positions computed in one pass at most; 0: as many as the node does by itself."""
    compute_seconds: float
    """Time of the computation in such passes."""
    exposed_seconds: float
    """What remains of the transfer after it."""

    @property
    def start_seconds(self) -> float:
        """Return the time until decoding can begin."""
        return self.compute_seconds + self.exposed_seconds


def plan_frames(
    num_tokens: int,
    num_layers: int,
    *,
    max_chunk_tokens: int,
    compute_seconds: float,
    send_seconds: float,
    least_pass_seconds: float = 0.0,
    pass_overhead_seconds: float = 0.0,
) -> FramePlan:
    """Return the frames with which decoding can begin soonest.

    A frame is a group of layers of a chunk of positions. Small ones shorten the wait for the first and the tail after
    the last; each has a fixed cost, so none is made that the link takes less time for than that, and a short prompt
    goes as one. Chunks shorter than the node's own cost passes, and are chosen only where groups of one layer leave
    too much: a long prompt on a node that would compute it at once, a model of few layers.

    Args:
        num_tokens: Positions to compute, 1 or more.
        num_layers: Layers, 1 or more.
        max_chunk_tokens: Positions that the node computes in one pass by itself; 0: not known, and left alone.
        compute_seconds: Time of the computation in such passes.
        send_seconds: Time that the link needs for all frames.
        least_pass_seconds: Time that the shortest pass takes: the weights are read.
        pass_overhead_seconds: Fixed cost of a pass.
    """
    own = min(num_tokens, max_chunk_tokens or num_tokens)
    num_own_passes = math.ceil(num_tokens / own)
    best = _best_groups(num_own_passes, num_layers, compute_seconds, send_seconds)
    chunk = own if max_chunk_tokens else 0
    while chunk >= 2 * MIN_CHUNK_TOKENS:
        chunk = math.ceil(chunk / 2)
        num_passes = math.ceil(num_tokens / chunk)
        computing = max(compute_seconds, num_passes * least_pass_seconds)
        computing += (num_passes - num_own_passes) * pass_overhead_seconds
        plan = _best_groups(num_passes, num_layers, computing, send_seconds)
        if plan.start_seconds > (1 - LEAST_GAIN) * best.start_seconds:
            break
        best = plan._replace(chunk_tokens=chunk)
    return best


def group_sizes(num_layers: int) -> list[int]:
    """Return the groups of layers that are worth a try: all of them, halved again and again, down to one."""
    return [max(1, num_layers >> halvings) for halvings in range(num_layers.bit_length())]


def _best_groups(num_passes: int, num_layers: int, compute_seconds: float, send_seconds: float) -> FramePlan:
    """Return the best group size, of the number of layers halved again and again; the largest wins a tie."""
    best: FramePlan | None = None
    for size in group_sizes(num_layers):
        num_frames = num_passes * math.ceil(num_layers / size)
        if best is not None and send_seconds < num_frames * cost.FRAME_OVERHEAD_SECONDS:
            break  # frames that the link takes in less than their fixed cost
        exposed = cost.exposed_seconds(num_frames, compute_seconds, send_seconds)
        if best is None or exposed < best.exposed_seconds:
            best = FramePlan(size, 0, compute_seconds, exposed)
    assert best is not None
    return best
