"""The runs of `baton bench prefix`: each system over cache sizes at one batch size, and the other way round."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

from bench.client.metrics import percentile
from bench.prefix.conversations import Request, at_rate
from bench.prefix.mock_engine import EngineRun, Outcome, Refill, run_note_engine
from bench.prefix.pass_timing import Timing
from bench.prefix.simulated_baton import BatonLoad
from bench.prefix.static_trie import PrefixTrie

SYSTEMS = {
    "batch": "batch drained, no cache",
    "slot": "places refilled, no cache",
    "trie": "places refilled, static trie (the note)",
    "baton": "Baton's scheduler, no cache",
    "baton-cache": "Baton's scheduler and block cache",
}
"""What is compared, by its name in files; each line but the first adds one idea."""


_SATURATING_FACTOR = 20.0
"""Requests per second for throughput / those that "slot" can serve: far more than any system can."""


class Plan(NamedTuple):
    """Which points are measured."""

    cache_sizes: Sequence[int]
    """CACHE_SIZE in tokens, swept at `batch_size`."""
    batch_sizes: Sequence[int]
    """Swept at `cache_size`."""
    cache_size: int
    batch_size: int
    load_factor: float
    """Requests per second when latencies are measured / those that "slot" can serve at `batch_size`."""


@dataclass(frozen=True)
class Row:
    """One system at one point, with a value of each metric for each request."""

    timing: str
    system: str
    batch_size: int
    cache_tokens: int
    memory_tokens: int
    """What the engine may hold, requests in the batch and cache together."""
    saturated_seconds: float
    """From the first arrival until the last token, where requests come faster than any system serves them."""
    output_tokens: int
    """Of all requests."""
    matched_tokens: tuple[int, ...]
    """Of each prompt, at the load of the plan; so are the latencies."""
    ttft_seconds: tuple[float, ...]
    tpot_seconds: tuple[float, ...]
    """Of requests with two tokens or more."""

    @cached_property
    def numbers(self) -> dict[str, float]:
        """Return the metrics of METHODOLOGY.md by name."""
        return {
            "output_tokens_per_second": self.output_tokens / self.saturated_seconds,
            "matched_tokens": sum(self.matched_tokens) / len(self.matched_tokens),
            "ttft_p50_seconds": _percentile(self.ttft_seconds, 50),
            "ttft_p99_seconds": _percentile(self.ttft_seconds, 99),
            "tpot_p50_seconds": _percentile(self.tpot_seconds, 50),
            "tpot_p99_seconds": _percentile(self.tpot_seconds, 99),
        }


def num_rows(plan: Plan) -> int:
    """Return how many rows a sweep of one timing yields."""
    return len(_points(plan))


def sweep(requests: Sequence[Request], trie: PrefixTrie, timing: Timing, plan: Plan) -> Iterator[Row]:
    """Yield a row for each system at each point.

    Args:
        requests: The load, by arrival; the plan decides its rate.
        trie: Of the conversations that the static cache was built from, whole.
        timing: What a pass takes.
        plan: Which points.
    """
    at_once = [replace(request, arrival_seconds=0.0) for request in requests]
    capacity = len(requests) / _last(_note_run(at_once, timing, plan.batch_size).outcomes)
    matches = {size: _matches(trie.pruned(size), requests) for size in {*plan.cache_sizes, plan.cache_size}}
    with (
        _Bench(at_rate(requests, plan.load_factor * capacity), timing, matches) as steady,
        _Bench(at_rate(requests, _SATURATING_FACTOR * capacity), timing, matches) as saturated,
    ):
        for system, batch_size, cache_size in _points(plan):
            # What the note's engine needs for its batch without a cache is everybody's, and the cache on top.
            memory = steady.peak_tokens(batch_size) + cache_size
            saturated_memory = saturated.peak_tokens(batch_size) + cache_size
            outcomes = steady.run(system, batch_size, cache_size, memory)
            saturated_outcomes = saturated.run(system, batch_size, cache_size, saturated_memory)
            row = _row(steady.load, outcomes, timing.name, system, batch_size, cache_size)
            yield replace(row, memory_tokens=saturated_memory, saturated_seconds=_last(saturated_outcomes))


class _Bench:
    """Runs one load on any system; a context manager."""

    def __init__(self, load: Sequence[Request], timing: Timing, matches: Mapping[int, Sequence[int]]) -> None:
        self.load = load
        self._timing = timing
        self._matches = matches
        self._baton = BatonLoad(load)
        self._peaks: dict[int, int] = {}

    def __enter__(self) -> _Bench:
        return self

    def __exit__(self, *error: object) -> None:
        self._baton.close()

    def peak_tokens(self, batch_size: int) -> int:
        """Return the memory that the note's engine needs for its batch."""
        if batch_size not in self._peaks:
            self._peaks[batch_size] = _note_run(self.load, self._timing, batch_size).peak_tokens
        return self._peaks[batch_size]

    def run(self, system: str, batch_size: int, cache_size: int, memory_tokens: int) -> list[Outcome]:
        """Return the outcome of each request."""
        if system.startswith("baton"):
            has_cache = system == "baton-cache"
            return self._baton.run(
                self._timing.name, batch_size=batch_size, memory_tokens=memory_tokens, has_prefix_cache=has_cache
            )
        cached = self._matches[cache_size] if system == "trie" else None
        refill: Refill = "batch" if system == "batch" else "slot"
        return _note_run(self.load, self._timing, batch_size, cached, refill).outcomes


def _points(plan: Plan) -> list[tuple[str, int, int]]:
    """Return (system, batch size, cache size); a system without a cache has one point over all cache sizes."""
    swept = [("trie", plan.batch_size, size) for size in plan.cache_sizes]
    swept += [("baton-cache", plan.batch_size, size) for size in plan.cache_sizes]
    for batch_size in sorted({*plan.batch_sizes, plan.batch_size}):
        swept += [(system, batch_size, 0) for system in ("batch", "slot", "baton")]
        swept += [(system, batch_size, plan.cache_size) for system in ("trie", "baton-cache")]
    return list(dict.fromkeys(swept))


def _note_run(
    load: Sequence[Request],
    timing: Timing,
    batch_size: int,
    cached_tokens: Sequence[int] | None = None,
    refill: Refill = "slot",
) -> EngineRun:
    return run_note_engine(load, cached_tokens or [0] * len(load), timing, batch_size, refill)


def _matches(trie: PrefixTrie, load: Sequence[Request]) -> list[int]:
    """Return the cached prefix of each prompt; its last token is computed always, for the logits after it."""
    return [min(trie.match(request.prompt), len(request.prompt) - 1) for request in load]


def _row(
    load: Sequence[Request],
    outcomes: Sequence[Outcome],
    timing: str,
    system: str,
    batch_size: int,
    cache_tokens: int,
) -> Row:
    pairs = list(zip(load, outcomes, strict=True))
    return Row(
        timing=timing,
        system=system,
        batch_size=batch_size,
        cache_tokens=cache_tokens,
        memory_tokens=0,
        saturated_seconds=0.0,
        output_tokens=sum(len(request.output) for request in load),
        matched_tokens=tuple(outcome.cached_tokens for outcome in outcomes),
        ttft_seconds=tuple(outcome.first_token_seconds - request.arrival_seconds for request, outcome in pairs),
        tpot_seconds=tuple(
            (outcome.finished_seconds - outcome.first_token_seconds) / (len(request.output) - 1)
            for request, outcome in pairs
            if len(request.output) > 1
        ),
    )


def _last(outcomes: Sequence[Outcome]) -> float:
    return max(outcome.finished_seconds for outcome in outcomes)


def _percentile(values: Sequence[float], percent: float) -> float:
    return percentile(sorted(values), percent) if values else 0.0
