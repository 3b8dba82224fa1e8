"""The numbers of one load of a replay: measured over estimated per term, regret, where requests ran; as lines, as JSON.

Measured and estimated have a floor below which nobody can tell.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

import numpy as np

from bench.host_cpu import BUSY_SHARE
from bench.prediction.regret import Regret, regrets
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
    return Spread(len(values), *np.percentile(values, (10, 50, 90)).tolist()) if values else None


def ratio(measured: float, estimated: float, floor_seconds: float = FLOOR_SECONDS) -> float:
    """Return (measured + floor) / (estimated + floor): 1 where both are too short to tell."""
    return (measured + floor_seconds) / (estimated + floor_seconds)


def floor_seconds(sample: Sample, term: str, time_scale: float = 1.0) -> float:
    """Return the floor of a request's term: a step is a mean, over which its two ends are shared out."""
    return FLOOR_SECONDS * time_scale / (max(1, sample.num_output_tokens - 2) if term == "step" else 1)


def term_spreads(samples: Sequence[Sample], time_scale: float = 1.0) -> dict[str, Spread]:
    """Return the percentiles of every term that a request has."""
    return _spreads(samples, lambda each, term: ratio(*each.terms[term], floor_seconds(each, term, time_scale)))


def error_spreads(samples: Sequence[Sample]) -> dict[str, Spread]:
    """Return, per term, the percentiles of (measured - estimated) / the request's measured total; of all its steps."""

    def share(sample: Sample, term: str) -> float:
        (measured, estimated), (total, _) = sample.terms[term], sample.terms["total"]
        return (measured - estimated) * (sample.num_output_tokens - 1 if term == "step" else 1) / total

    return _spreads(samples, share)


def _spreads(samples: Sequence[Sample], value: Callable[[Sample, str], float]) -> dict[str, Spread]:
    found = {term: spread([value(each, term) for each in samples if term in each.terms]) for term in LIMITS}
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
    terms = {term for each in samples for term in each.terms}
    middles = {term: median(each.terms[term][0] for each in samples if term in each.terms) for term in terms}
    return _spreads(samples, lambda each, term: ratio(each.terms[term][0], middles[term], floor_seconds(each, term)))


MAX_REGRET = 0.05
"""Share of the best in hindsight that choices may cost beyond it."""


@dataclass(frozen=True, slots=True)
class LoadReport:
    """A trace at one load."""

    load: float
    """Arriving requests over what the nodes can serve by formula."""
    per_second: float
    """Arriving requests per second of the run's clock."""
    time_scale: float
    """How many times slower than what they stand for the nodes were."""
    host_cpu_share: float
    samples: tuple[Sample, ...]
    """All requests, in order of arrival."""
    identical: Mapping[str, Spread]
    """Spread of identical requests on idle nodes, by term; empty: not measured, and not divided out."""

    @property
    def spreads(self) -> dict[str, Spread]:
        """Return measured / estimated by term."""
        return term_spreads(self.samples, self.time_scale)

    @property
    def adjusted(self) -> dict[str, Spread]:
        """Return the same with the spread of identical requests divided out."""
        return {term: values.over(self.identical.get(term)) for term, values in self.spreads.items()}

    @property
    def failures(self) -> list[str]:
        """Return what is not as good as it shall be."""
        found = [term for term, values in self.adjusted.items() if not values.is_within(*LIMITS[term])]
        return found + (["regret"] if self.regret_share > MAX_REGRET else [])

    @property
    def regrets(self) -> list[Regret]:
        """Return the regret of every request that was measured."""
        return regrets(self.samples)

    @property
    def regret_share(self) -> float:
        """Return the seconds of all choices over those of the best in hindsight, less 1."""
        found = self.regrets
        best = sum(each.best_seconds for each in found)
        return sum(each.chosen_seconds for each in found) / best - 1 if best > 0 else 0.0

    @property
    def ttft_mean_seconds(self) -> float:
        """Return the mean time to first token, of the nodes' time."""
        times = [sample.measured.ttft for sample in self.samples if sample.measured]
        return sum(times) / len(times) / self.time_scale if times else 0.0

    @property
    def shares(self) -> dict[str, dict[str, int]]:
        """Return how many requests each node computed the prompt of, and how many it generated."""
        chosen = [sample.chosen for sample in self.samples if sample.chosen]
        return {
            "prefill": dict(sorted(Counter(each.prefill_node for each in chosen).items())),
            "decode": dict(sorted(Counter(each.decode_node for each in chosen).items())),
            "pairs": dict(sorted(Counter(f"{each.prefill_node} > {each.decode_node}" for each in chosen).items())),
        }

    def lines(self) -> list[str]:
        """Return the numbers as text; times in the nodes' seconds."""
        unlike = Counter(sample.error for sample in self.samples if sample.error)
        busy = ", HOST BUSY" if self.host_cpu_share > BUSY_SHARE else ""
        worst = np.percentile([each.chosen_seconds / each.best_seconds - 1 for each in self.regrets] or [0.0], 90)
        head = (
            f"{100 * self.load:.0f} % of capacity, {self.per_second:.2f}/s, {len(self.samples)} requests,"
            f" CPU {100 * self.host_cpu_share:.0f} %{busy}: TTFT mean {self.ttft_mean_seconds:.3f} s,"
            f" regret {100 * self.regret_share:.1f} % (p90 of a request {100 * worst:.1f} %)"
        )
        found = [head, *(self._line(term, values) for term, values in self.spreads.items())]
        found += [f"  {name:8} {counts}" for name, counts in self.shares.items()]
        return found + [f"  not compared: {count} x {reason}" for reason, count in unlike.most_common(4)]

    def document(self) -> dict[str, Any]:
        """Return it as JSON has it; times of the samples by the run's clock."""
        return {
            "load": self.load,
            "per_second": self.per_second,
            "time_scale": self.time_scale,
            "host_cpu_share": self.host_cpu_share,
            "is_host_busy": self.host_cpu_share > BUSY_SHARE,
            "ttft_mean_seconds": self.ttft_mean_seconds,
            "regret_share": self.regret_share,
            "terms": {term: asdict(values) for term, values in self.spreads.items()},
            "sums": sum_ratios(self.samples),
            "errors": {term: asdict(values) for term, values in error_spreads(self.samples).items()},
            "adjusted": {term: asdict(values) for term, values in self.adjusted.items()} if self.identical else None,
            "shares": self.shares,
            "failures": self.failures,
            "samples": [sample.document() for sample in self.samples],
        }

    def _line(self, term: str, values: Spread) -> str:
        adjusted, (low, high) = self.adjusted[term], LIMITS[term]
        verdict = "ok" if adjusted.is_within(low, high) else f"not within {low:g} to {high:g}"
        told = f"  {term:8} {values.count:5} {_three(values)}  sum {sum_ratios(self.samples).get(term, 0.0):5.2f}"
        if self.identical:
            told += f"  identical {_three(self.identical[term]) if term in self.identical else '-':>17}"
            told += f"  divided {_three(adjusted)}"
        error = error_spreads(self.samples)[term]
        return f"{told}  off by {100 * error.p10:+.0f} to {100 * error.p90:+.0f} % of the total  {verdict}"


def _three(values: Spread) -> str:
    return f"{values.p10:5.2f} {values.p50:5.2f} {values.p90:5.2f}"
