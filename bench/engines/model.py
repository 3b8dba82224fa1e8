"""A model of SmolLM-135M's shape with random weights: what an engine costs does not depend on what the weights say."""

from __future__ import annotations

from pathlib import Path

from bench.engines.llama_folder import write_llama

VOCABULARY_SIZE = 49_152
HIDDEN_SIZE = 576
INTERMEDIATE_SIZE = 1536
NUM_LAYERS = 30
NUM_HEADS = 9
NUM_KV_HEADS = 3
HEAD_DIM = 64
MAX_CONTEXT_TOKENS = 8192

NUM_LINEAR_PARAMETERS = NUM_LAYERS * (
    HIDDEN_SIZE * (NUM_HEADS + 2 * NUM_KV_HEADS) * HEAD_DIM
    + NUM_HEADS * HEAD_DIM * HIDDEN_SIZE
    + 3 * HIDDEN_SIZE * INTERMEDIATE_SIZE
)
"""Parameters that multiply every token."""
NUM_HEAD_PARAMETERS = VOCABULARY_SIZE * HIDDEN_SIZE
"""Parameters that multiply the tokens whose logits are wanted."""


def write_model(folder: Path) -> None:
    """Write a Hugging Face folder with the model and a tokenizer that knows its ids."""
    write_llama(
        folder,
        VOCABULARY_SIZE,
        MAX_CONTEXT_TOKENS,
        hidden_size=HIDDEN_SIZE,
        intermediate_size=INTERMEDIATE_SIZE,
        num_hidden_layers=NUM_LAYERS,
        num_attention_heads=NUM_HEADS,
        num_key_value_heads=NUM_KV_HEADS,
        tie_word_embeddings=True,
    )


def flops(num_tokens: int) -> float:
    """Return the operations of computing a prompt: its products, and causal attention to itself."""
    attention = 2 * NUM_LAYERS * NUM_HEADS * HEAD_DIM * num_tokens * (num_tokens + 1)
    return 2.0 * NUM_LINEAR_PARAMETERS * num_tokens + 2.0 * NUM_HEAD_PARAMETERS + attention


def step_bytes(batch_size: int, context: int, element_bytes: int) -> float:
    """Return the bytes that a decode step must read: all weights once, and each sequence's K and V."""
    kv = 2 * NUM_LAYERS * NUM_KV_HEADS * HEAD_DIM * context * batch_size
    return float(element_bytes * (NUM_LINEAR_PARAMETERS + NUM_HEAD_PARAMETERS + kv))


def step_flops(batch_size: int, context: int) -> float:
    """Return the operations of a decode step."""
    attention = 4 * NUM_LAYERS * NUM_HEADS * HEAD_DIM * context
    return batch_size * (2.0 * (NUM_LINEAR_PARAMETERS + NUM_HEAD_PARAMETERS) + attention)
