"""What an engine is doing, in numbers."""

from __future__ import annotations

from dataclasses import dataclass

from baton.capacity.tiers import TierRates
from baton.engine.offload import TierHits
from baton.engine.scheduler import Scheduler
from baton.engine.sequence import Purpose


@dataclass(frozen=True, slots=True)
class EngineLoad:
    """What the engine is doing."""

    num_waiting: int
    """Requests that no pass computes: without blocks, or with KV on its way from another node."""
    num_running: int
    """Requests in the batch."""
    num_pending_prompt_tokens: int
    """Positions still to compute here, of waiting and running requests, decode steps not counted."""
    num_available_blocks: int
    """Blocks that could be allocated."""
    mean_context_tokens: float
    """Mean length of the running requests."""
    num_steps: int
    """Passes since start."""
    tier_hits: TierHits = TierHits()
    """Positions found in the prefix cache since start, by where."""
    num_dropped_files: int = 0
    """Blocks on disk that turned out to be broken, since start."""
    tier_rates: TierRates = TierRates()
    """How fast blocks come back from host memory and disk."""
    is_sparing_memory: bool = False
    """Whether nobody is admitted beside others, for memory is short."""


def load_of(scheduler: Scheduler, num_steps: int) -> EngineLoad:
    """Return the load of an engine. O(living requests)."""
    waiting, running = scheduler.waiting, scheduler.running
    computed_here = [sequence for sequence in (*waiting, *running) if sequence.purpose is not Purpose.RECEIVE]
    return EngineLoad(
        num_waiting=len(waiting) + len(scheduler.receiving),
        num_running=len(running),
        num_pending_prompt_tokens=sum(sequence.num_pending for sequence in computed_here if sequence.is_prefilling),
        num_available_blocks=scheduler.pool.num_available,
        mean_context_tokens=sum(len(sequence.token_ids) for sequence in running) / max(1, len(running)),
        num_steps=num_steps,
        tier_hits=scheduler.offload.hits,
        num_dropped_files=scheduler.offload.num_dropped_files,
        tier_rates=scheduler.offload.rates,
        is_sparing_memory=scheduler.is_sparing,
    )
