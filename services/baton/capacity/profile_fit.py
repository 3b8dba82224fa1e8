"""How the speed of a node is fitted from a few measured timings."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean, median
from typing import NamedTuple

from baton.capacity.cost import ModelShape, NodeProfile

MAX_RATE = 1e18
"""Largest rate that a fit reports, FLOP/s or bytes/s: beyond it, timings show no dependency at all."""


class PrefillSample(NamedTuple):
    """One timed prefill without a cached prefix."""

    num_tokens: int
    """Prompt length, 1 or more."""
    seconds: float
    """Duration, above 0."""


class DecodeSample(NamedTuple):
    """One timed decode step."""

    batch_size: int
    """Sequences in the step, 1 or more."""
    context_tokens: int
    seconds: float
    """Duration, above 0."""


class Line(NamedTuple):
    """seconds = overhead_seconds + work / rate."""

    overhead_seconds: float
    """Intercept, 0 or more."""
    rate: float
    """Work per second, above 0."""


def fit_profile(
    shape: ModelShape, prefill_samples: Sequence[PrefillSample], decode_samples: Sequence[DecodeSample]
) -> NodeProfile:
    """Fit rates and overheads to timings; one outlier among five or more samples does not move the result much.

    `shape`: the model that was timed. `prefill_samples`: two or more, over a range of lengths. `decode_samples`: two or
    more, over a range of batch sizes and contexts. Raises ValueError if there are fewer than two samples of a kind, or
    a duration is not positive.
    """
    if len(prefill_samples) < 2 or len(decode_samples) < 2:
        raise ValueError(f"need 2 samples of each kind, got {len(prefill_samples)} and {len(decode_samples)}")
    if min(sample.seconds for samples in (prefill_samples, decode_samples) for sample in samples) <= 0:
        raise ValueError("durations must be positive")
    prefill = fit_line([(shape.prefill_flop(0, sample.num_tokens), sample.seconds) for sample in prefill_samples])
    memory, decode_flops = _fit_roofline(shape, decode_samples, floor_flops=prefill.rate)
    return NodeProfile(prefill.rate, prefill.overhead_seconds, decode_flops, memory.rate, memory.overhead_seconds)


def fit_line(points: Sequence[tuple[float, float]]) -> Line:
    """Fit seconds = overhead + work / rate to (work, seconds) points by the median of pairwise slopes.

    Timings that do not grow with work (noise, or too little work to see it) give the greatest rate that was seen: the
    true one is at least that. Source: Theil 1950, Sen 1968 (median of pairwise slopes; breaks down at 29 % outliers).
    """
    slopes = [
        (right[1] - left[1]) / (right[0] - left[0])
        for index, left in enumerate(points)
        for right in points[index + 1 :]
        if right[0] != left[0]
    ]
    slope = median(slopes) if slopes else 0.0
    if slope <= 1.0 / MAX_RATE:
        slope = min(seconds / work for work, seconds in points)
    overhead = median(seconds - slope * work for work, seconds in points)
    if overhead < 0:
        overhead, slope = 0.0, median(seconds / work for work, seconds in points)
    return Line(overhead, min(1.0 / slope, MAX_RATE))


def _fit_roofline(shape: ModelShape, samples: Sequence[DecodeSample], *, floor_flops: float) -> tuple[Line, float]:
    """Fit step = overhead + max(bytes / rate, flop / flops).

    Samples are ordered by operations per byte; every split into memory-bound ones [0, k) and compute-bound ones [k,
    n) is fitted, and the split whose prediction errs least is kept. Where no sample is compute-bound, the arithmetic
    rate is the greater of `floor_flops` and the greatest rate seen.
    """

    def work(sample: DecodeSample) -> tuple[float, float]:
        return shape.step_bytes(*sample[:2]), shape.step_flop(*sample[:2])

    ordered = sorted(samples, key=lambda sample: work(sample)[1] / work(sample)[0])
    best: tuple[float, Line, float] | None = None
    for split in range(len(ordered), 1, -1):
        memory = fit_line([(work(sample)[0], sample.seconds) for sample in ordered[:split]])
        rates = [work(sample)[1] / max(sample.seconds - memory.overhead_seconds, 1e-9) for sample in ordered]
        flops = median(rates[split:]) if split < len(ordered) else max(floor_flops, *rates)
        error = fmean(
            abs(memory.overhead_seconds + max(read / memory.rate, flop / flops) - sample.seconds) / sample.seconds
            for sample, (read, flop) in ((sample, work(sample)) for sample in ordered)
        )
        if best is None or error < best[0] * (1 - 1e-9):
            best = (error, memory, flops)
    assert best is not None
    return best[1], min(best[2], MAX_RATE)
