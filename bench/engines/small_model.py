"""A model so small that the host's part of a pass shows: what an engine costs does not depend on what it says."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

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
    import torch
    from tokenizers import Tokenizer, models
    from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedTokenizerFast

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY_SIZE,
        **shape,
        max_position_embeddings=4096,
        bos_token_id=None,
        eos_token_id=2,
        pad_token_id=0,
    )
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    words = {f"t{index}": index for index in range(VOCABULARY_SIZE)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="t1"))
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="t2", pad_token="t0").save_pretrained(folder)
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": 2}), encoding="utf-8")
