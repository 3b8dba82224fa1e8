"""Declared hardware for nodes without a device, and what a step takes on it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from baton.capacity.cost import ModelShape, NodeProfile


@dataclass(frozen=True, slots=True)
class Hardware:
    """A device by its data sheet. Source: vendors' dense 16-bit figures, docs/placement.md says which are checked."""

    name: str
    flops: float
    """Dense 16-bit arithmetic, FLOP/s."""
    memory_bytes_per_second: float
    """Memory bandwidth, bytes/s."""
    prefill_efficiency: float = 1.0
    """Share of `flops` that prefill reaches; above 0 to 1."""
    decode_efficiency: float = 1.0
    """Share of the bandwidth that decode steps reach; above 0 to 1."""

    def slowed(self, factor: float) -> Hardware:
        """Return a device on which everything takes `factor` times as long."""
        return replace(self, flops=self.flops / factor, memory_bytes_per_second=self.memory_bytes_per_second / factor)

    def profile(self) -> NodeProfile:
        """Return the profile that these figures declare; without overheads."""
        return NodeProfile(
            prefill_flops=self.flops * self.prefill_efficiency,
            prefill_overhead_seconds=0.0,
            decode_flops=self.flops * self.prefill_efficiency,
            decode_bytes_per_second=self.memory_bytes_per_second * self.decode_efficiency,
            step_overhead_seconds=0.0,
        )


PRESETS = {
    preset.name: preset
    for preset in (
        Hardware("dgx-spark", 100e12, 273e9, prefill_efficiency=0.90, decode_efficiency=0.66),
        Hardware("m3-ultra", 26e12, 819e9, prefill_efficiency=0.91, decode_efficiency=0.74),
        Hardware("m2", 3.6e12, 100e9, prefill_efficiency=0.90, decode_efficiency=0.75),
        Hardware("h200", 989e12, 4.8e12, prefill_efficiency=0.60, decode_efficiency=0.80),
        Hardware("a100", 312e12, 2.0e12, prefill_efficiency=0.60, decode_efficiency=0.80),
    )
}
"""Efficiencies: DGX Spark and M3 Ultra from the published runs in docs/placement.md; M2, H200 and A100 assumed."""


class StepSpan(NamedTuple):
    """One sequence's part in a step: positions [context_tokens - computed_tokens, context_tokens) are computed."""

    context_tokens: int
    """Sequence length after the step."""
    computed_tokens: int
    """Positions computed in it, 1 or more."""


def step_seconds(hardware: Hardware, shape: ModelShape, spans: Sequence[StepSpan]) -> float:
    """Return what one step over `spans`, prefills and decodes together, takes: arithmetic or memory, the larger.

    Each at its effective rate, seconds; nothing takes no time. Source: Williams et al. 2009, Roofline; operation counts
    as in `ModelShape`.
    """
    if not spans:
        return 0.0
    profile = hardware.profile()
    flop = sum(shape.prefill_flop(span.context_tokens - span.computed_tokens, span.context_tokens) for span in spans)
    num_context_tokens = sum(span.context_tokens for span in spans)
    num_bytes = shape.weight_bytes + num_context_tokens * shape.kv_bytes_per_token
    return max(flop / profile.decode_flops, num_bytes / profile.decode_bytes_per_second)
