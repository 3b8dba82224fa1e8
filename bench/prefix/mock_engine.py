"""The mock-engine note's engine: first come first served, a fixed number of places, prompts and steps in one pass."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from bench.prefix.conversations import Request
from bench.prefix.pass_timing import Span, Timing

Refill = Literal["slot", "batch"]
"""When waiting requests enter: a place as soon as it is free, or all places once the whole batch has ended."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a request; moments are seconds of virtual time."""

    cached_tokens: int
    """Prompt tokens that were not computed."""
    first_token_seconds: float
    """When the first token came."""
    finished_seconds: float
    """When the last token came."""


class EngineRun(NamedTuple):
    """A run over a load."""

    outcomes: list[Outcome]
    """In the order of the requests."""
    peak_tokens: int
    """Most tokens that the requests in the batch had together: memory that the engine must have, in tokens."""


@dataclass(slots=True)
class _Active:
    index: int
    num_left: int
    """Tokens still to generate."""
    span: Span
    """What the next pass computes."""
    first_token_seconds: float = 0.0


def run_note_engine(
    requests: Sequence[Request], cached_tokens: Sequence[int], timing: Timing, batch_size: int, refill: Refill
) -> EngineRun:
    """Run requests, ordered by arrival, to their end.

    Args:
        requests: The load.
        cached_tokens: Of each request: prompt tokens in the prefix cache; less than the prompt.
        timing: What a pass takes.
        batch_size: Places.
        refill: When waiting requests enter.
    """
    waiting = deque(range(len(requests)))
    batch: list[_Active] = []
    outcomes: dict[int, Outcome] = {}
    now, peak_tokens = 0.0, 0
    while waiting or batch:
        if not batch:
            now = max(now, requests[waiting[0]].arrival_seconds)
        if not batch or refill == "slot":
            while waiting and len(batch) < batch_size and requests[waiting[0]].arrival_seconds <= now:
                batch.append(_enter(requests, cached_tokens, waiting.popleft()))
        spans = [active.span for active in batch]
        now += timing.step_seconds(spans)
        peak_tokens = max(peak_tokens, sum(span.context_tokens for span in spans))
        for active in batch:
            _take_token(active, now)
            if active.num_left == 0:
                outcomes[active.index] = Outcome(cached_tokens[active.index], active.first_token_seconds, now)
        batch = [active for active in batch if active.num_left > 0]
    return EngineRun([outcomes[index] for index in range(len(requests))], peak_tokens)


def _enter(requests: Sequence[Request], cached_tokens: Sequence[int], index: int) -> _Active:
    num_prompt_tokens = len(requests[index].prompt)
    return _Active(
        index, len(requests[index].output), Span(num_prompt_tokens, num_prompt_tokens - cached_tokens[index])
    )


def _take_token(active: _Active, now: float) -> None:
    active.first_token_seconds = active.first_token_seconds or now
    active.num_left -= 1
    active.span = Span(active.span.context_tokens + 1, 1)
