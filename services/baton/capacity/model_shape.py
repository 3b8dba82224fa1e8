"""The size of a model, as the cost formulas need it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ModelShape:
    """Counts of one model (protos/baton/v1/node.proto, ModelShape)."""

    num_layers: int
    """Layers, 1 or more."""
    num_linear_parameters: int
    """Parameters that multiply every token: projections of all layers; active ones for mixtures of experts."""
    num_head_parameters: int
    """Parameters of the output projection, applied to sampled positions only."""
    num_attention_heads: int
    """Query heads of one layer."""
    num_kv_heads: int
    """KV heads of one layer."""
    head_dim: int
    """Elements of one head."""
    weight_bytes: int
    """Bytes read in one decode step at batch 1."""
    kv_bytes_per_token: int
    """Cache bytes of one token over all layers, in the cache's dtype."""
    max_context_tokens: int
    """Longest sequence, prompt and output together."""
    vocabulary_size: int
    """Rows of the output projection."""

    def step_flop(self, batch_size: int, context_tokens: float) -> float:
        """Return the operations of one decode step of `batch_size` sequences of `context_tokens` each."""
        linear = 2.0 * (self.num_linear_parameters + self.num_head_parameters)
        return batch_size * (linear + self.attention_flop_per_pair * context_tokens)

    def step_bytes(self, batch_size: int, context_tokens: float) -> float:
        """Return the bytes that one decode step reads: all weights once, the KV of every sequence."""
        return self.weight_bytes + batch_size * context_tokens * self.kv_bytes_per_token

    def workspace_bytes(self, pass_tokens: int) -> int:
        """Return about what a pass over `pass_tokens` positions holds beside weights and KV, in 32-bit elements.

        The outputs of one layer's projections and four copies of its input per position, and one row of logits.
        """
        width = self.num_attention_heads * self.head_dim
        layer_outputs = self.num_linear_parameters // (self.num_layers * width)
        return 4 * (pass_tokens * (layer_outputs + 4 * width) + self.vocabulary_size)

    def prefill_flop(self, cached_tokens: int, end: int) -> float:
        """Return the floating-point operations to compute positions [cached_tokens, end).

        Linear layers per position, causal attention over all earlier positions (half of the square), the output
        projection for the last position alone.
        """
        num_pairs = (end * end - cached_tokens * cached_tokens) / 2.0
        linear = 2.0 * self.num_linear_parameters * (end - cached_tokens)
        return linear + self.attention_flop_per_pair * num_pairs + 2.0 * self.num_head_parameters

    @property
    def attention_flop_per_pair(self) -> float:
        """Return the operations of one (query, key) pair over all layers: score and weighted sum, 2 per element."""
        return 4.0 * self.num_attention_heads * self.head_dim * self.num_layers
