"""Bounds within which an engine works: what an operator sets, not what it measures.

How long KV is moved between two passes has no bound here: `engine/kv_cache/ingest.py` weighs it.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SchedulerLimits:
    """Bounds of a batch."""

    max_batch_size: int = 64
    """Sequences that hold blocks at once."""
    max_step_tokens: int = 512
    max_step_prompts: int = 0
    """Prompts computed in one pass; 0: as many as `max_step_tokens` allows."""
    shares_prompts: bool = True
    """Whether equal beginnings of prompts that are there at the same time are computed once."""
    max_host_bytes: int = 0
    """Host memory for what blocks hold that leave the device; 0: it is computed again."""
    target_tpot_seconds: float = 0.0
    """What a pass takes at most in which sequences generate, as far as the share of prompts in it decides; 0: any."""
