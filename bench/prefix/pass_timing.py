"""What a pass takes: the mock-engine note's formula, and the roofline of the same model and device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol


class Span(NamedTuple):
    """One sequence's part in a pass."""

    context_tokens: int
    """Its length after the pass (the note's s)."""
    computed_tokens: int
    """Positions computed in the pass (the note's c), 1 or more."""


class Timing(Protocol):
    """A model of what a pass takes, which `baton simulate` knows by the same name."""

    @property
    def name(self) -> str:
        """Return the name."""

    def step_seconds(self, spans: Sequence[Span]) -> float:
        """Return the duration of a pass over one sequence or more, seconds."""


WEIGHT_BYTES = 120e9
"""Llama-65B in 16 bits, as the note has it."""
_MEMORY_BYTES_PER_SECOND = 2000e9
_FLOPS = 312e12


@dataclass(frozen=True, slots=True)
class NoteTiming:
    """b · max s · max c / (c_tflops · alpha) + s_model / m_bandwidth. Source: the mock-engine note."""

    name: str = "note"
    alpha: float = 1500.0
    """Tokens² per TFLOP: fits a Llama-65B on an A100 at prompts of about 200 tokens."""

    def step_seconds(self, spans: Sequence[Span]) -> float:
        """Return the duration: every member is padded to the longest, so that one prefill makes all pay for it."""
        longest = max(span.context_tokens for span in spans)
        most = max(span.computed_tokens for span in spans)
        compute_seconds = len(spans) * longest * most / (_FLOPS / 1e12 * self.alpha)
        return compute_seconds + WEIGHT_BYTES / _MEMORY_BYTES_PER_SECOND


@dataclass(frozen=True, slots=True)
class RooflineTiming:
    """The larger of arithmetic and memory time; Llama-65B on an A100 that reaches 60 % and 80 % of its data sheet.

    Source: Williams et al. 2009, Roofline; sizes of the model from its paper.
    """

    name: str = "roofline"
    num_layers: int = 80
    hidden_size: int = 8192
    intermediate_size: int = 22016
    vocabulary_size: int = 32000
    compute_efficiency: float = 0.6
    memory_efficiency: float = 0.8

    def step_seconds(self, spans: Sequence[Span]) -> float:
        """Return the duration: operations and bytes add up over the sequences, the weights are read once."""
        flop = sum(self._flop(span) for span in spans)
        kv_bytes = sum(span.context_tokens for span in spans) * 4 * self.num_layers * self.hidden_size
        return max(
            flop / (_FLOPS * self.compute_efficiency),
            (WEIGHT_BYTES + kv_bytes) / (_MEMORY_BYTES_PER_SECOND * self.memory_efficiency),
        )

    def _flop(self, span: Span) -> float:
        """Return linear layers per position, causal attention over (query, key) pairs, the head for one position."""
        hidden, start = self.hidden_size, span.context_tokens - span.computed_tokens
        linear = 2 * self.num_layers * hidden * (4 * hidden + 3 * self.intermediate_size) * span.computed_tokens
        num_pairs = (span.context_tokens**2 - start**2) / 2
        return linear + 4 * self.num_layers * hidden * num_pairs + 2 * hidden * self.vocabulary_size


TIMINGS: tuple[Timing, ...] = (NoteTiming(), RooflineTiming())
