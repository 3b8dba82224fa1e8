"""What the engine tells the services: of each request, and of itself.

Of a request in this order: Admitted, log-probabilities of the prompt where they are wanted, tokens, then Ended or
Failed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from baton.capacity.snapshot import QueuedPrompt, TierRates
from baton.engine.kv_cache.offload import TierHits
from baton.engine.sampling import SampledToken
from baton.engine.sequence import FinishReason
from baton.errors import BatonError
from baton.kv.hashing import BlockHash


@dataclass(frozen=True, slots=True)
class Admitted:
    """The request has its blocks."""

    num_cached_tokens: int
    """Leading positions, of prompt and earlier output, whose KV is here already."""
    block_hashes: tuple[BlockHash, ...] = ()
    """Hashes of the full blocks of both, where KV is awaited from another node and the prefix cache may be used."""


@dataclass(frozen=True, slots=True)
class PromptScored:
    """How probable the model found consecutive tokens of the prompt; each position comes once, in order."""

    position: int
    """Position of the first of them, 1 or more: before the first token of a prompt there is nothing to judge by."""
    tokens: tuple[SampledToken, ...]
    """The tokens, 1 or more, with their log-probabilities."""


class PromptWork(NamedTuple):
    """What it took to compute a prompt."""

    num_cached_tokens: int
    """Prompt positions that came from the prefix cache here."""
    num_shared_tokens: int
    """Prompt positions after these that another request of the same prompt, or prefix, computed meanwhile."""
    queue_seconds: float
    """The rest of the time from submission until the first token was known here; where another node computed the
    prompt, until its KV could be asked for."""
    prefill_seconds: float
    """What of the passes until then was its own computation (`engine/scheduling/scheduler.py`); where another node
    computed the prompt, from then until the first token was known here."""


class TokenReady(NamedTuple):
    """A token of the output."""

    output_index: int
    """Its index in the output, from 0, tokens of earlier attempts counted."""
    token: SampledToken
    prompt_work: PromptWork | None = None
    """With the token of a request that only computes a prompt for another node."""


@dataclass(frozen=True, slots=True)
class FrameLanded:
    """A KV frame is in the blocks; there is room for another."""


@dataclass(frozen=True, slots=True)
class Isolated:
    """The next pass is the request's alone, or passes are shared again. The engine waits until that has been told."""

    is_alone: bool
    told: Callable[[], None]
    """Called, by any thread, once whoever has to know may know."""


@dataclass(frozen=True, slots=True)
class Ended:
    """The request is complete; nothing of it is left in the engine."""

    reason: FinishReason
    num_prompt_tokens: int
    num_output_tokens: int
    """Output tokens, those of earlier attempts included."""
    prompt_work: PromptWork
    num_preemptions: int
    """Times that it was taken from the batch for want of blocks."""
    decode_seconds: float
    """From the first to the last token."""
    join_seconds: float
    """For which received KV waited, once all of it had come, until the pass in flight was over."""
    stop_token_id: int | None
    """The end token, where one ended the output; None: the limit did, or nothing can follow in the output's form."""
    mean_batch_size: float = 0.0
    """Requests that had a token of each of its decode steps, itself included, on average; 0: it had none."""


@dataclass(frozen=True, slots=True)
class Failed:
    """The request has failed; nothing of it is left in the engine."""

    error: BatonError


EngineEvent = Admitted | PromptScored | TokenReady | FrameLanded | Isolated | Ended | Failed


Listener = Callable[[EngineEvent], None]
"""Takes the events of one request; must not block."""


class LandingLoad(NamedTuple):
    """KV of other nodes on its way into the device's memory."""

    bytes_per_second: float = 0.0
    """Rate of writing, while something is written; 0: nothing has been."""
    num_bytes: int = 0
    """What has been received and is not written yet."""


@dataclass(frozen=True, slots=True)
class EngineLoad:
    """What the engine is doing."""

    num_waiting: int
    """Requests that no pass computes: without blocks, or with KV on its way from another node."""
    num_running: int
    num_pending_prompt_tokens: int
    """Positions still to compute here, of waiting and running requests, decode steps not counted."""
    num_available_blocks: int
    mean_context_tokens: float
    """Mean length of the running requests that generate here."""
    num_steps: int
    """Passes since start."""
    tier_hits: TierHits = TierHits()
    """Positions found in the prefix cache since start, by where."""
    num_dropped_files: int = 0
    """Blocks on disk that turned out to be broken, since start."""
    tier_rates: TierRates = TierRates()
    """How fast blocks come back from host memory and disk."""
    is_sparing_memory: bool = False
    """Whether sequences are computed one at a time, for memory is short."""
    queued_prompts: tuple[QueuedPrompt, ...] = ()
    """Prompts still to compute here, in order of turns; the first ones, where there are many."""
    landing: LandingLoad = LandingLoad()
    """KV of other nodes on its way into the device's memory."""
    reading_bytes_per_second: float = 0.0
    """Rate of handing out cached KV to others; 0: nothing has been."""
    num_decoding: int = 0
    """Of the running requests, those whose prompt is computed and that generate here."""
    num_exports: int = 0
    """Of the waiting and running requests, those of which the prompt alone is computed here, for another node."""
    num_wanted_blocks: int = 0
    """Blocks that those take who wait, but for what they wait for together."""
