"""Bounds within which the scheduler plans.

What keeps the host out of the device's way, each part by itself: for measurements of what each is worth.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SchedulerLimits:
    """Bounds of a batch."""

    max_batch_size: int = 64
    """Sequences that hold blocks at once."""
    max_step_tokens: int = 512
    """Positions computed in one pass."""
    max_step_prompts: int = 0
    """Prompts computed in one pass; 0: as many as `max_step_tokens` allows."""
    shares_prompts: bool = True
    """Whether equal beginnings of prompts that are there at the same time are computed once."""
    max_host_bytes: int = 0
    """Host memory for what blocks hold that leave the device; 0: it is computed again."""
    target_tpot_seconds: float = 0.0
    """What a pass takes at most in which sequences generate, as far as the share of prompts in it decides; 0: any."""


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """How an engine works; what it says is the same with any of them. A runner may not be able to do all."""

    runs_ahead: bool = True
    """Whether a pass is launched before the output of the one before it is processed."""
    max_launch_steps: int = 8
    """Decode passes launched at once while no request waits, 1 or more; a runner bounds it."""
    reuses_steps: bool = True
    """Whether the plan of a decode pass is made from that of the same batch's pass before."""
    chooses_by_batch: bool = True
    """Whether tokens of greedy and plainly drawn rows are chosen for the batch, not row by row."""
    delivers_columns: bool = True
    """Whether the tokens of a pass are delivered as columns, not as an event each."""
    ingest_share: float = 0.1
    """Part of a pass's time for which KV that arrives is written after it while others generate, and as much again for
    blocks that other nodes ask for; 0: any."""


DEFAULT_OPTIONS = EngineOptions()
"""Everything that helps."""
