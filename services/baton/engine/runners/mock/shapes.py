"""Sizes of well-known models, so that a mock cluster can stand for them without their weights."""

from __future__ import annotations

from dataclasses import dataclass, replace

from baton.engine.runners.base import ModelInfo
from baton.kv.layout import LayerSpec


@dataclass(frozen=True, slots=True)
class MockShape:
    """A model's sizes, as its config.json has them."""

    num_layers: int
    """Layers."""
    hidden_size: int
    """Elements of a hidden state."""
    intermediate_size: int
    """Elements inside the MLP."""
    num_heads: int
    """Query heads."""
    num_kv_heads: int
    """KV heads."""
    head_dim: int
    """Elements of one head."""
    max_context_tokens: int
    """Longest sequence."""
    vocabulary_size: int
    """Rows of the output projection, for its cost; the tokens stay those of the tokenizer."""

    def applied_to(self, info: ModelInfo) -> ModelInfo:
        """Return `info` with these sizes; tokenizer and vocabulary stay."""
        attention = self.hidden_size * self.head_dim * 2 * (self.num_heads + self.num_kv_heads)
        num_linear = self.num_layers * (attention + 3 * self.hidden_size * self.intermediate_size)
        num_head = self.vocabulary_size * self.hidden_size
        layer = LayerSpec(self.num_kv_heads, self.head_dim, self.head_dim)
        return replace(
            info,
            layout=replace(info.layout, layers=(layer,) * self.num_layers),
            num_linear_parameters=num_linear,
            num_head_parameters=num_head,
            num_attention_heads=self.num_heads,
            head_dim=self.head_dim,
            weight_bytes=(num_linear + num_head) * info.layout.dtype.num_bytes,
            max_context_tokens=self.max_context_tokens,
        )


SHAPES = {
    "llama-3.1-8b": MockShape(32, 4096, 14336, 32, 8, 128, 131072, 128256),
    "llama-3.1-70b": MockShape(80, 8192, 28672, 64, 8, 128, 131072, 128256),
    "llama-2-7b": MockShape(32, 4096, 11008, 32, 32, 128, 4096, 32000),
    "qwen3-0.6b": MockShape(28, 1024, 3072, 16, 8, 128, 40960, 151936),
}
"""By name. Source: the config.json of each model."""
