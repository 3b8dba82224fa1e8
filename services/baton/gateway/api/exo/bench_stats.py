"""How fast prompts were computed whose KV is in a prefix cache since.

The figures of one benchmark request, from what its nodes measured. bench/METHODOLOGY.md defines them.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Sequence
from hashlib import blake2b
from typing import Literal

import msgspec

from baton.gateway.generation.requests import GenerationResult, PreparedPrompt
from baton.v1.generation_pb2 import PlacementSummary
from baton.wire.quantities import seconds_from_duration

MAX_PROMPTS = 4096
"""Kept; the prompt not used for longest is forgotten first."""


class PromptRates:
    """Remembers tokens per second by prompt. Holds digests, no tokens."""

    def __init__(self) -> None:
        self._rates: OrderedDict[bytes, float] = OrderedDict()

    def store(self, model_revision_digest: str, token_ids: Sequence[int], tokens_per_second: float) -> None:
        """Keep the rate of the run that computed a prompt, in place of an earlier one."""
        key = _key(model_revision_digest, token_ids)
        self._rates[key] = tokens_per_second
        self._rates.move_to_end(key)
        if len(self._rates) > MAX_PROMPTS:
            self._rates.popitem(last=False)

    def find(self, model_revision_digest: str, token_ids: Sequence[int]) -> float | None:
        """Return the rate of the run that computed a prompt; None if it is not known."""
        key = _key(model_revision_digest, token_ids)
        if key in self._rates:
            self._rates.move_to_end(key)
        return self._rates.get(key)


def _key(model_revision_digest: str, token_ids: Sequence[int]) -> bytes:
    digest = blake2b(model_revision_digest.encode(), digest_size=16)
    digest.update(array("i", token_ids).tobytes())
    return digest.digest()


CacheHit = Literal["none", "partial", "exact"]
"""How much of a prompt was in the prefix cache of the node that computed it."""


class MemorySize(msgspec.Struct, rename={"num_bytes": "inBytes"}):
    """exo's form of a size."""

    num_bytes: int


class GenerationStats(msgspec.Struct):
    """exo's `generation_stats`: all numbers, never null."""

    prompt_tps: float
    """Prompt tokens that were computed per second of prefill; of an exact hit, the rate of the run that computed it."""
    generation_tps: float
    """Tokens after the first per second between first and last; 0 for a single one."""
    prompt_tokens: int
    generation_tokens: int
    peak_memory_usage: MemorySize
    """Of the node whose peak is larger, where two worked on the request."""
    prefix_cache_hit: CacheHit


class PowerUsage(msgspec.Struct, omit_defaults=True):
    """exo's `power_usage`, of the machines that worked on the request, in joules; what no sensor covers is absent."""

    prefill_energy_joules: float | None = None
    generation_energy_joules: float | None = None


def generation_stats(prompt: PreparedPrompt, result: GenerationResult, rates: PromptRates) -> GenerationStats:
    """Return the figures of a request that has ended.

    `rates` gives the rate of an exact hit, and learns the rate of a run that filled the cache.
    """
    summary = result.summary
    num_uncached = result.num_prompt_tokens - _num_cached(summary, result.num_prompt_tokens)
    prompt_tps = _rate(num_uncached, seconds_from_duration(summary.prefill_duration))
    hit: CacheHit = "none" if num_uncached == result.num_prompt_tokens else "partial"
    if not prompt.request.bypass_prefix_cache:
        stored = rates.find(prompt.model_revision_digest, prompt.token_ids) if hit == "partial" else None
        # A cache holds full blocks, and never the last token, whose logits are needed.
        if stored is not None and num_uncached <= prompt.block_tokens:
            hit, prompt_tps = "exact", stored
        elif prompt_tps > 0:
            rates.store(prompt.model_revision_digest, prompt.token_ids, prompt_tps)
    return GenerationStats(
        prompt_tps=prompt_tps,
        generation_tps=_rate(summary.completion_token_count - 1, seconds_from_duration(summary.decode_duration)),
        prompt_tokens=result.num_prompt_tokens,
        generation_tokens=result.num_completion_tokens,
        peak_memory_usage=MemorySize(
            max(summary.decode_peak_memory_byte_count, summary.prefill_peak_memory_byte_count)
        ),
        prefix_cache_hit=hit,
    )


def power_usage(summary: PlacementSummary) -> PowerUsage | None:
    """Return the energy of a request; None where nothing of it is known."""
    has_prefill, has_decode = (summary.HasField(f"{phase}_energy_joules") for phase in ("prefill", "decode"))
    if not has_prefill and not has_decode:
        return None
    return PowerUsage(
        prefill_energy_joules=summary.prefill_energy_joules if has_prefill else None,
        generation_energy_joules=summary.decode_energy_joules if has_decode else None,
    )


def _num_cached(summary: PlacementSummary, num_prompt_tokens: int) -> int:
    """Return the prompt tokens that the node which computed the prompt had in its cache."""
    is_local = summary.prefill_node_id in ("", summary.decode_node_id)
    num_cached = summary.decode_cached_token_count if is_local else summary.prefill_cached_token_count
    return min(num_cached, num_prompt_tokens)


def _rate(num_tokens: int, seconds: float) -> float:
    return num_tokens / seconds if num_tokens > 0 and seconds > 0 else 0.0
