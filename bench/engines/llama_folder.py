"""Hugging Face folders of Llamas with random weights, for engines whose speed does not depend on what they say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def write_llama(folder: Path, vocabulary_size: int, max_context_tokens: int, **shape: Any) -> None:
    """Write a model of random weights, and a tokenizer that reads its ids as words: "t17 t4".

    Args:
        folder: Where to.
        vocabulary_size: Tokens; 0 pads, 1 stands for unknown words, 2 ends a text.
        max_context_tokens: Positions.
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
    words = {f"t{index}": index for index in range(vocabulary_size)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="t1"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="t2", pad_token="t0").save_pretrained(folder)
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": 2}), encoding="utf-8")
