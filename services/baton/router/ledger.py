"""Recent placements, so that an outcome finds the estimate it is to be compared with."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from baton.capacity.estimate import Candidate, CostEstimate

MAX_ENTRIES = 16_384
"""Placements remembered; the oldest goes first. One whose outcome comes later is simply not learnt from."""


@dataclass(frozen=True, slots=True)
class PlacedRequest:
    """One placement."""

    candidate: Candidate
    """What was chosen."""
    num_prompt_tokens: int
    """Tokens of the prompt."""
    base_step_seconds: float
    """Estimated decode step without correction."""
    runner_up: CostEstimate | None = None
    """Terms of the next best candidate; None if there was none."""

    def has_restored(self, num_cached_tokens: int) -> bool:
        """Return whether, of what the computing node took as cached, part was copied back to its device.

        The copy is then part of what is measured as computing the prompt.
        """
        num_restored = self.candidate.prefill_restored_tokens
        return num_restored > 0 and num_cached_tokens > self.candidate.prefill_cached_tokens - num_restored


class Ledger:
    """Placements by id, at most `MAX_ENTRIES`, each taken out once."""

    def __init__(self, max_entries: int = MAX_ENTRIES) -> None:
        self._max_entries = max_entries
        self._placed: OrderedDict[str, PlacedRequest] = OrderedDict()

    def add(self, placement_id: str, placed: PlacedRequest) -> None:
        """Remember a placement."""
        self._placed[placement_id] = placed
        if len(self._placed) > self._max_entries:
            self._placed.popitem(last=False)

    def take(self, placement_id: str) -> PlacedRequest | None:
        """Return a placement and forget it; None if it is not known (any more)."""
        return self._placed.pop(placement_id, None)
