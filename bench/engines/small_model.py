"""A model so small that the host's part of a pass shows: what an engine costs does not depend on what it says."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from bench.engines.models import write_llama

VOCABULARY_SIZE = 2048


SMALL_SHAPE = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
"""As Hugging Face's configuration names it."""


def write_small_model(folder: Path, shape: Mapping[str, int] = SMALL_SHAPE) -> None:
    """Write a Hugging Face folder: Llama layers of random weights, and a tokenizer that knows its ids."""
    write_llama(folder, VOCABULARY_SIZE, 4096, **shape)
