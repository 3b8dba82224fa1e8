"""What every candidate would have taken, priced again with what was measured, and what the choice cost beyond the best.

All else is fixed: every other request runs where it ran and takes what it took. METHODOLOGY.md has the formula.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from bench.prediction.sample import Candidate, Sample

_SHORT_SHARE = 0.1
"""Part of a node's passes that goes to who is through sooner by it."""


@dataclass(frozen=True, slots=True)
class Regret:
    """Of one request."""

    chosen_seconds: float
    """What the choice takes, priced again."""
    best_seconds: float
    """What the best candidate takes, priced again; at most `chosen_seconds`."""


@dataclass(frozen=True, slots=True)
class Rates:
    """Median of measured / estimated over a run; 1 where nothing was measured."""

    prefill: Mapping[str, float]
    """By node that computed."""
    step: Mapping[str, float]
    """By node that generated."""
    transfer: Mapping[tuple[str, str], float]
    """By sending and receiving node."""


def regrets(samples: Sequence[Sample]) -> list[Regret]:
    """Return the regret of every request of a run that was measured and had candidates."""
    done = sorted((each for each in samples if each.chosen and each.measured), key=lambda sample: sample.called_seconds)
    rates = measured_rates(done)
    backlogs = {
        node: Backlog(done, node) for node in {way for each in done for c in each.candidates for way in c.way[:2]}
    }
    found = []
    for sample in done:
        assert sample.chosen is not None
        prices = [_price(candidate, sample, rates, backlogs[candidate.prefill_node]) for candidate in sample.candidates]
        chosen = _price(sample.chosen, sample, rates, backlogs[sample.chosen.prefill_node])
        found.append(Regret(chosen, min([chosen, *prices])))
    return found


def measured_rates(samples: Sequence[Sample]) -> Rates:
    """Return how far the estimates of the chosen candidates were off, by node and by pair."""
    found: dict[str, dict[Any, list[float]]] = {"prefill": {}, "step": {}, "transfer": {}}
    for sample in samples:
        if sample.chosen is None:
            continue
        chosen = sample.chosen
        places = {"prefill": chosen.prefill_node, "step": chosen.decode_node, "transfer": _link(chosen)}
        for term in found.keys() & sample.terms.keys():
            measured, estimated = sample.terms[term]
            if measured > 0 and estimated > 0:
                found[term].setdefault(places[term], []).append(measured / estimated)
    return Rates(**{term: {place: median(own) for place, own in by_place.items()} for term, by_place in found.items()})


class Backlog:
    """Computation that a node has before it at any moment, from the prompts that it computed and what they took.

    What is left after each arrival is Lindley's recursion, the oldest prompts being computed first; a request is not in
    the backlog that it finds itself. Nodes give a tenth of a pass to who is through sooner by it and the rest by turns,
    so a short prompt does not wait for all of it.
    """

    def __init__(self, samples: Sequence[Sample], node: str) -> None:
        """Take the prompts that `node` computed."""
        own = [each for each in samples if each.chosen and each.chosen.prefill_node == node]
        self._arrivals = [each.called_seconds for each in own]
        self._work = [each.measured.prefill if each.measured else 0.0 for each in own]
        self._after: list[float] = []  # computation that is left just after each arrival
        left, before = 0.0, 0.0
        for arrival, work in zip(self._arrivals, self._work, strict=True):
            left = max(0.0, left - (arrival - before)) + work
            before = arrival
            self._after.append(left)

    def wait_seconds(self, now: float, own_seconds: float) -> float:
        """Return the wait of a prompt that comes now and takes `own_seconds`: all, or what a tenth of passes leaves."""
        index = bisect_left(self._arrivals, now) - 1
        if index < 0:
            return 0.0
        left = max(0.0, self._after[index] - (now - self._arrivals[index]))
        sooner, before = 0.0, left
        for work in reversed(self._work[: index + 1]):  # the latest first: what is before each is known
            part = max(0.0, min(work, before))
            sooner += part if part < _SHORT_SHARE * before else 0.0
            before -= part
        return min(left, (sooner + own_seconds) / _SHORT_SHARE - own_seconds)


def _price(candidate: Candidate, sample: Sample, rates: Rates, backlog: Backlog) -> float:
    """Return start + steps + imposed of a candidate, its terms corrected by what the run has shown."""
    terms = candidate.terms
    prefill = terms.prefill_seconds * rates.prefill.get(candidate.prefill_node, 1.0)
    transfer = rates.transfer.get(_link(candidate), 1.0) * (terms.exposed_seconds + terms.pull_seconds)
    known = terms.queue_seconds + terms.prefill_seconds + terms.exposed_seconds + terms.pull_seconds
    start = backlog.wait_seconds(sample.called_seconds, prefill) + prefill + transfer
    steps = (sample.num_output_tokens - 1) * terms.step_seconds * rates.step.get(candidate.decode_node, 1.0)
    return max(0.0, terms.start_seconds - known) + start + steps + terms.imposed_seconds


def _link(candidate: Candidate) -> tuple[str, str]:
    return (candidate.pull_node or candidate.prefill_node, candidate.decode_node)
