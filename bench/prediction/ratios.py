"""Measured over estimated, term by term, with a floor below which nobody can tell."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bench.client.metrics import percentile
from bench.prediction.sample import Sample

FLOOR_SECONDS = 0.01
"""Resolution of a term, on both sides, in the nodes' time: a node tells what it does once per pass."""
LIMITS: Mapping[str, tuple[float, float]] = {
    "prefill": (0.9, 1.1),
    "step": (0.9, 1.1),
    "queue": (0.8, 1.25),
    "transfer": (0.8, 1.25),
    "start": (0.8, 1.25),
    "total": (0.8, 1.25),
}
"""Where the 10th and the 90th percentile shall be, by term."""


@dataclass(frozen=True, slots=True)
class Spread:
    """Percentiles of a ratio."""

    count: int
    """Requests that have the term."""
    p10: float
    p50: float
    p90: float

    def over(self, other: Spread | None) -> Spread:
        """Return what is left of it when the spread of identical requests is divided out; the median stays."""
        if other is None:
            return self
        low, high = self.p10 / (other.p10 / other.p50), self.p90 / (other.p90 / other.p50)
        return Spread(self.count, min(self.p50, low), self.p50, max(self.p50, high))

    def is_within(self, low: float, high: float) -> bool:
        """Return whether the 10th to the 90th percentile are."""
        return low <= self.p10 and self.p90 <= high


def spread(values: Sequence[float]) -> Spread | None:
    """Return the percentiles of values; None without any."""
    ordered = sorted(values)
    return Spread(len(ordered), *(percentile(ordered, percent) for percent in (10, 50, 90))) if ordered else None


def ratio(measured: float, estimated: float, floor_seconds: float = FLOOR_SECONDS) -> float:
    """Return (measured + floor) / (estimated + floor): 1 where both are too short to tell."""
    return (measured + floor_seconds) / (estimated + floor_seconds)


def floor_seconds(sample: Sample, term: str, time_scale: float = 1.0) -> float:
    """Return the floor of a request's term: a step is a mean, over which its two ends are shared out."""
    return FLOOR_SECONDS * time_scale / (max(1, sample.num_output_tokens - 2) if term == "step" else 1)


def term_ratios(samples: Sequence[Sample], term: str, time_scale: float = 1.0) -> list[float]:
    """Return the ratio of every request that has a term."""
    return [
        ratio(*sample.terms[term], floor_seconds(sample, term, time_scale))
        for sample in samples
        if term in sample.terms
    ]


def term_spreads(samples: Sequence[Sample], time_scale: float = 1.0) -> dict[str, Spread]:
    """Return the percentiles of every term that a request has."""
    found = {term: spread(term_ratios(samples, term, time_scale)) for term in LIMITS}
    return {term: values for term, values in found.items() if values is not None}


def sum_ratios(samples: Sequence[Sample]) -> dict[str, float]:
    """Return, per term, all measured seconds over all estimated ones: the bias, without a floor."""
    found = {}
    for term in LIMITS:
        pairs = [sample.terms[term] for sample in samples if term in sample.terms]
        estimated = sum(each for _, each in pairs)
        if estimated > 0:
            found[term] = sum(each for each, _ in pairs) / estimated
    return found


def identical_spreads(samples: Sequence[Sample]) -> dict[str, Spread]:
    """Return, per term, the percentiles of what was measured of identical requests over its median."""
    found = {}
    for term in LIMITS:
        pairs = [(sample, sample.terms[term][0]) for sample in samples if term in sample.terms]
        if pairs:
            middle = percentile(sorted(seconds for _, seconds in pairs), 50)
            values = spread([ratio(seconds, middle, floor_seconds(sample, term)) for sample, seconds in pairs])
            assert values is not None
            found[term] = values
    return found
