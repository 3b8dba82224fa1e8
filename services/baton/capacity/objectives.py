"""Objectives of latency: within what a request is good. Pure."""

from __future__ import annotations

from typing import NamedTuple

TTFT_BOUNDS_SECONDS = (1e-3, 3600.0)
"""Least and largest time to first token that a request may want."""
TPOT_BOUNDS_SECONDS = (1e-5, 60.0)
"""The same of its time per output token."""


class Objectives(NamedTuple):
    """Within what a request is good; 0: no objective."""

    ttft_seconds: float = 0.0
    tpot_seconds: float = 0.0
    """Mean time per output token after the first."""

    def over(self, others: Objectives) -> Objectives:
        """Return these, and of `others` those that are not set here."""
        return Objectives(self.ttft_seconds or others.ttft_seconds, self.tpot_seconds or others.tpot_seconds)

    def scaled(self, factor: float) -> Objectives:
        """Return them, so many times as long."""
        return Objectives(self.ttft_seconds * factor, self.tpot_seconds * factor)
