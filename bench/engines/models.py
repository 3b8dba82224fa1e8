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


def write_model(folder: Path) -> None:
    """Write a Hugging Face folder with a model of SmolLM-135M's shape and a tokenizer that knows its ids."""
    write_llama(
        folder,
        49_152,
        8192,
        hidden_size=576,
        intermediate_size=1536,
        num_hidden_layers=30,
        num_attention_heads=9,
        num_key_value_heads=3,
        tie_word_embeddings=True,
    )


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
