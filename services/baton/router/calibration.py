"""How far predictions are off, per node, link and term, learnt from what happened, and what a choice has cost.

Each comparison also goes into metrics of the node or the link that a term is of.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping
from typing import Generic, Literal, NamedTuple, TypeVar, get_args

from baton.capacity.cost import expected_seconds
from baton.capacity.placement_table import TermComparison, compare_terms
from baton.capacity.planning.pricing import Demand
from baton.router.in_flight import PlacedRequest
from baton.router.nodes import Outcome
from baton.telemetry import names
from baton.telemetry.metrics import Metrics

KeyT = TypeVar("KeyT", bound=Hashable)

WEIGHT = 0.2
"""Weight of one outcome in the moving average."""
MAX_FACTOR_PER_OUTCOME = 1.25
"""Furthest that one outcome moves a factor; the next that lies as far off to the same side moves it twice as far, and
so on: one may be chance, four are another speed."""
_FAR_SPREADS = 2.0
"""Spreads from which on an outcome lies far off."""
MAX_FACTOR = 16.0
"""Usual bound of a factor: beyond it, the profile is wrong rather than off."""
PRIOR_SPREAD = 0.1
"""Spread of outcomes, as a share, before there are any."""
MAX_KEYS = 1 << 15
"""Nodes or links whose outcomes are remembered: nodes come and go under other names."""
HALF_LIFE_SECONDS = 120.0
"""Time without outcomes after which half of what looked slower is forgotten, so that it is tried again. What has been
faster than it was measured to be stays so: it is chosen, and a new outcome says otherwise."""
DEMAND_SECONDS = 300.0
"""What is this old weighs 1/e in the demand for a model."""
USUAL_SECONDS = 60.0
"""For which the usual demand weighs in beside what is observed."""


class RatioAverage:
    """Moving geometric mean of measured / estimated, and how far outcomes lie from it.

    Invariant, kept by `add`: the mean is within [1/max_factor, max_factor]; of 1, only the spread is learnt.
    """

    def __init__(self, max_factor: float = MAX_FACTOR) -> None:
        self._bound = math.log(max_factor)
        self._log_factor = 0.0
        self._variance = PRIOR_SPREAD**2
        self._updated_at_seconds = 0.0
        self._num_far = 0  # outcomes of late that all lie as far off, to one side: that of the sign
        self._far = 0.0

    def add(self, ratio: float, now_seconds: float) -> None:
        """Take one outcome: measured / estimated, both without correction; above 0."""
        current = math.log(self.factor(now_seconds))
        error = math.log(ratio) - current
        pace = 2.0 ** self._follow(error)
        bound = pace * math.log(MAX_FACTOR_PER_OUTCOME)
        move = max(-bound, min(bound, min(1.0, pace * WEIGHT) * error))
        self._variance += WEIGHT * (min(error**2, math.log(MAX_FACTOR) ** 2) - self._variance)
        self._log_factor = max(-self._bound, min(self._bound, current + move))
        self._updated_at_seconds = now_seconds

    def _follow(self, error: float) -> int:
        """Return how many outcomes right before lie as far off, to the same side, 3 at most."""
        side = 1 if error > 0 else -1
        if self._num_far * side <= 0:
            self._num_far, self._far = 0, max(_FAR_SPREADS * self.spread, math.log(MAX_FACTOR_PER_OUTCOME))
        before = abs(self._num_far)
        self._num_far = side * min(3, before + 1) if abs(error) > self._far else 0
        return before if self._num_far else 0

    @property
    def spread(self) -> float:
        """Return the standard deviation of the logarithm of measured / estimated, about the mean of its time."""
        return math.sqrt(self._variance)

    def factor(self, now_seconds: float) -> float:
        """Return what estimates are to be multiplied by; 1 without outcomes."""
        age = max(0.0, now_seconds - self._updated_at_seconds) if self._log_factor > 0 else 0.0
        return math.exp(self._log_factor * 0.5 ** (age / HALF_LIFE_SECONDS))


class Calibration(Generic[KeyT]):
    """Factors by key (a node, or a pair of nodes), bounded as `RatioAverage` says."""

    def __init__(self, clock: Callable[[], float], *, max_factor: float = MAX_FACTOR) -> None:
        self._clock, self._max_factor = clock, max_factor
        self._averages: dict[KeyT, RatioAverage] = {}

    def add(self, key: KeyT, measured_seconds: float, estimated_seconds: float) -> None:
        """Take one outcome; one without a duration on either side says nothing and is left out."""
        if measured_seconds > 0 and estimated_seconds > 0:
            average = self._averages.pop(key, None) or RatioAverage(self._max_factor)
            average.add(measured_seconds / estimated_seconds, self._clock())
            self._averages[key] = average  # the first are of those of whom nothing has been heard for longest
            if len(self._averages) > MAX_KEYS:
                del self._averages[next(iter(self._averages))]

    def factor(self, key: KeyT) -> float:
        """Return what estimates for `key` are to be multiplied by; 1 without outcomes."""
        average = self._averages.get(key)
        return average.factor(self._clock()) if average else 1.0

    def spread(self, key: KeyT) -> float:
        """Return how far outcomes for `key` lie from their corrected estimates, as a share."""
        average = self._averages.get(key)
        return average.spread if average else PRIOR_SPREAD

    def has_learnt(self, key: KeyT) -> bool:
        """Return whether there are outcomes for `key`."""
        return key in self._averages

    def reported(self, key: KeyT) -> float:
        """Return the factor as `NodeState` reports it: 0 without outcomes."""
        return self.factor(key) if key in self._averages else 0.0

    def forget(self, matches: Callable[[KeyT], bool]) -> None:
        """Drop the keys that match: a process that has started again measured itself again."""
        self._averages = {key: average for key, average in self._averages.items() if not matches(key)}


class _Sums(NamedTuple):
    """Of one model, as they stand at a moment; what is `DEMAND_SECONDS` old weighs 1/e."""

    at_seconds: float
    seconds: float = 0.0
    num_placed: float = 0.0
    prompt_tokens: float = 0.0
    num_ended: float = 0.0
    output_tokens: float = 0.0


class ObservedDemand:
    """What has been asked of each model of late; until there is enough of that, what is usual weighs in.

    A router sees the outcomes of all requests but places only its own, and those that wait have no outcome yet:
    whichever are more tell the rate.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._sums: dict[str, _Sums] = {}

    def add(self, model_id: str, *, num_prompt_tokens: int = 0, num_output_tokens: int = 0) -> None:
        """Take a request that begins, by its prompt, or has ended, by its output."""
        now, seconds, *sums = self._faded(model_id)
        new = (num_prompt_tokens > 0, num_prompt_tokens, num_output_tokens > 0, num_output_tokens)
        self._sums[model_id] = _Sums(now, seconds, *(old + more for old, more in zip(sums, new, strict=True)))

    def of_model(self, model_id: str, usual: Demand) -> Demand:
        """Return what is expected of a model's requests."""
        sums = self._faded(model_id)
        num_requests = USUAL_SECONDS * usual.requests_per_second + max(sums.num_placed, sums.num_ended)
        return Demand(
            num_requests / (USUAL_SECONDS + sums.seconds),
            round((usual.num_prompt_tokens + sums.prompt_tokens) / (1 + sums.num_placed)),
            round((usual.num_output_tokens + sums.output_tokens) / (1 + sums.num_ended)),
        )

    def output_tokens(self, model_id: str) -> float | None:
        """Return the mean output of a model; None before the first request has ended."""
        sums = self._sums.get(model_id)
        return sums.output_tokens / sums.num_ended if sums and sums.num_ended else None

    def _faded(self, model_id: str) -> _Sums:
        now = self._clock()
        at_seconds, seconds, *sums = self._sums.setdefault(model_id, _Sums(now))
        kept = math.exp(min(0.0, at_seconds - now) / DEMAND_SECONDS)
        return _Sums(now, seconds * kept + DEMAND_SECONDS * (1 - kept), *(kept * each for each in sums))


Term = Literal["queue", "prefill", "transfer", "pull", "step", "start", "total"]
"""What is compared: waiting, computing the prompt, sending its KV, or a cached prefix, one step, all until decoding
can begin, and all to the last token."""
LEAST_QUEUE_SHARE = 0.05
"""Part of the start as which shorter waits count: whether a request comes early or late in a pass is not estimated.
Where both waits are shorter they are not compared."""
_COMPUTING_NODE: frozenset[str] = frozenset({"queue", "prefill"})
"""Terms of the node that computed the prompt."""
_LINK: frozenset[str] = frozenset({"transfer", "pull"})
"""Terms of the link; the others are of the node that decoded."""


class Comparison(NamedTuple):
    """One outcome, judged."""

    ratios: Mapping[Term, float]
    """Measured / estimated, of the terms that both sides have."""
    regret_seconds: float | None
    """Time beyond what the next best candidate was expected to take, 0 or more; None where there was no other one."""


def compare(placed: PlacedRequest, outcome: Outcome) -> Comparison | None:
    """Compare a placement, as it was estimated with all corrections of its time, with its outcome.

    Returns:
        None where something else happened than was placed: a fallback, a preemption, a pull of fewer tokens or of more.
    """
    estimate, num_tokens = placed.candidate.estimate, outcome.num_completion_tokens
    is_other = outcome.fallback_reason or outcome.num_preemptions
    if estimate is None or is_other or not num_tokens or outcome.pulled_tokens != placed.candidate.pulled_tokens:
        return None
    pairs = {pair.term: pair for pair in compare_terms(estimate, outcome.terms, num_tokens)}
    least = LEAST_QUEUE_SHARE * estimate.start_seconds
    if max(outcome.queue_seconds, estimate.queue_seconds) > least:
        pairs["queue"] = TermComparison("queue", max(estimate.queue_seconds, least), max(outcome.queue_seconds, least))
    else:
        del pairs["queue"]
    if placed.has_restored(outcome.prefill_cached_tokens):
        del pairs["prefill"]
    pairs.pop("pull", None)
    sent = pairs.pop("transfer", None)
    if sent and (placed.candidate.pull_node_id or not placed.candidate.is_local):
        pairs["pull" if placed.candidate.pull_node_id else "transfer"] = sent
    other = placed.runner_up
    return Comparison(
        ratios={term: ratio for term in get_args(Term) if term in pairs and (ratio := pairs[term].ratio)},
        regret_seconds=max(0.0, outcome.total_seconds - expected_seconds(other, num_tokens)) if other else None,
    )


def record_comparison(metrics: Metrics, comparison: Comparison, outcome: Outcome) -> None:
    """Record the ratio of each term of a request, and its regret."""
    link = link_of(outcome)
    for term, ratio in comparison.ratios.items():
        node_id = "" if term in _LINK else outcome.decode_node_id
        if term in _COMPUTING_NODE:
            node_id = outcome.prefill_node_id or node_id
        where = {names.NODE_ID: node_id, names.LINK: link if term in _LINK else ""}
        metrics.record(names.PREDICTION_RATIO, ratio, {names.TERM: term, **where})
    if comparison.regret_seconds is not None:
        share = comparison.regret_seconds / max(outcome.total_seconds, comparison.regret_seconds, 1e-9)
        where = {names.NODE_ID: outcome.decode_node_id, names.LINK: link}
        metrics.record(names.REGRET, comparison.regret_seconds, where)
        metrics.record(names.REGRET_SHARE, share, where)


def link_of(outcome: Outcome) -> str:
    """Return the way that KV took, "sender>receiver"; empty if there was none."""
    sender = outcome.pull_node_id or outcome.prefill_node_id
    return f"{sender}>{outcome.decode_node_id}" if sender not in ("", outcome.decode_node_id) else ""
