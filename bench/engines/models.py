"""Model folders with random weights: what an engine costs does not depend on what it says."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.workloads.vocabulary import WORDS


def write_llama(
    folder: Path,
    vocabulary_size: int,
    max_context_tokens: int,
    names: Sequence[str] = (),
    chat_template: str | None = None,
    **shape: Any,
) -> None:
    """Write a model of random weights, and a tokenizer that reads its ids as words: "t17 t4".

    Args:
        folder: Where to.
        vocabulary_size: Tokens; 0 pads, 1 stands for unknown words, 2 ends a text.
        max_context_tokens: Positions.
        names: Words that the ids from 3 on are read as instead.
        chat_template: Of the tokenizer; None: it has none.
        shape: As `transformers.LlamaConfig` names it.
    """
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedTokenizerFast

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=vocabulary_size,
        max_position_embeddings=max_context_tokens,
        bos_token_id=None,
        eos_token_id=2,
        pad_token_id=0,
        **shape,
    )
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    words = {f"t{index}": index for index in range(vocabulary_size) if not 3 <= index < 3 + len(names)}
    words |= {name: index for index, name in enumerate(names, 3)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="t1"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="t2", pad_token="t0", unk_token="t1")
    fast.chat_template = chat_template
    fast.save_pretrained(folder)
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": 2}), encoding="utf-8")


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


def write_stack_model(folder: Path) -> None:
    """Write a Hugging Face folder: eight Llama layers, a word-level tokenizer, and a template that adds nothing."""
    write_llama(
        folder,
        4096,
        4096,
        WORDS,
        "{% for message in messages %}{{ message['content'] }} {% endfor %}",
        tie_word_embeddings=False,
        **EIGHT_LAYERS,
    )


EIGHT_LAYERS: Mapping[str, Any] = {
    "hidden_size": 384,
    "intermediate_size": 1024,
    "num_hidden_layers": 8,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
}
"""As Hugging Face's configuration names it."""
