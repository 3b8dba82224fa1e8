"""Requests of production services, replayed: their arrival times, lengths and, where known, their shared prefixes."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import accumulate, islice
from pathlib import Path
from random import Random

from bench.workloads.dataset import Session, Turn, Vocabulary

MOONCAKE_BLOCK_TOKENS = 512


@dataclass(frozen=True, slots=True)
class TraceRow:
    """One request of a trace: seconds after the trace's beginning, lengths in tokens, ids of the prompt's blocks."""

    arrival_seconds: float
    prompt_tokens: int
    output_tokens: int
    block_ids: tuple[int, ...] = ()
    """Equal ids are equal blocks; empty where the trace does not say what prompts share."""


@dataclass(frozen=True, slots=True)
class Scaling:
    """How a trace is made to fit: factors on lengths, and the longest request that is kept."""

    length_factor: float = 1.0
    """Multiplies prompt, output and block lengths, above 0; each stays 1 or more."""
    max_context_tokens: int | None = None
    """Requests whose scaled prompt and output exceed it are left out; None keeps all."""

    def tokens(self, num_tokens: int) -> int:
        """Return a scaled length, 1 or more."""
        return max(1, round(num_tokens * self.length_factor))

    def fits(self, row: TraceRow) -> bool:
        """Return whether a request, scaled, is no longer than the longest."""
        limit = self.max_context_tokens
        return limit is None or self.tokens(row.prompt_tokens) + self.tokens(row.output_tokens) <= limit


def read_mooncake(path: Path) -> Iterator[TraceRow]:
    """Yield the requests of a Mooncake trace (FAST'25): JSON lines with times in milliseconds and 512-token blocks."""
    with path.open(encoding="utf-8") as lines:
        for line in lines:
            row = json.loads(line)
            yield TraceRow(row["timestamp"] / 1000, row["input_length"], row["output_length"], tuple(row["hash_ids"]))


def read_azure(path: Path) -> Iterator[TraceRow]:
    """Yield the requests of an Azure LLM inference trace (2023): CSV with the time of day and both lengths."""
    with path.open(encoding="utf-8", newline="") as lines:
        begin: datetime | None = None
        for row in csv.DictReader(lines):
            arrival = datetime.fromisoformat(row["TIMESTAMP"])
            begin = begin or arrival
            seconds = (arrival - begin).total_seconds()
            yield TraceRow(seconds, int(row["ContextTokens"]), int(row["GeneratedTokens"]))


def replay(
    rows: Iterable[TraceRow], vocabulary: Vocabulary, seed: int, count: int, scaling: Scaling | None = None
) -> list[Session]:
    """Return the first `count` requests of a trace that fit, as sessions with arrival times.

    A block's tokens follow from (seed, block id) alone, so prompts share what the trace says they share.
    """
    scaling = scaling or Scaling()
    return [
        Session((_turn(row, vocabulary, f"{seed}/{index}", seed, scaling),), row.arrival_seconds)
        for index, row in enumerate(islice(filter(scaling.fits, rows), count))
    ]


def _turn(row: TraceRow, vocabulary: Vocabulary, own_seed: str, seed: int, scaling: Scaling) -> Turn:
    num_tokens = scaling.tokens(row.prompt_tokens)
    block_tokens = scaling.tokens(MOONCAKE_BLOCK_TOKENS)
    symbols: list[int] = []
    for block_id in row.block_ids:
        if len(symbols) >= num_tokens:
            break
        symbols += vocabulary.draw(Random(f"{seed}/block {block_id}"), block_tokens)
    # Rounding may leave the blocks short of the prompt; the rest is the request's own.
    symbols += vocabulary.draw(Random(own_seed), max(0, num_tokens - len(symbols)))
    return Turn(vocabulary.render(symbols[:num_tokens]), scaling.tokens(row.output_tokens))


def poisson(count: int, per_second: float, random: Random) -> list[float]:
    """Return arrivals of a Poisson process: exponential gaps of mean 1 / per_second, which has to be positive."""
    _require_positive("the arrival rate", per_second)
    return list(accumulate(random.expovariate(per_second) for _ in range(count)))


def replayed(trace_seconds: Sequence[float], speed: float) -> list[float]:
    """Return a trace's arrivals from its first on, `speed` times as fast; raise ValueError if that is not positive."""
    _require_positive("the speed of a replay", speed)
    ordered = sorted(trace_seconds)
    return [(seconds - ordered[0]) / speed for seconds in ordered]


def _require_positive(name: str, value: float) -> None:
    if not value > 0:
        raise ValueError(f"{name} is {value}; it is above 0")
