"""A model folder for whole servers: eight Llama layers with random weights, which cost what trained ones do."""

from __future__ import annotations

import json
from pathlib import Path

from bench.workloads.vocabulary import WORDS

_NUM_TOKENS = 4096
"""Of the vocabulary, and of the longest context."""
_TEMPLATE = "{% for message in messages %}{{ message['content'] }} {% endfor %}"


def write_stack_model(folder: Path) -> None:
    """Write a Hugging Face folder with a tokenizer that reads ids as words, and a template that adds nothing.

    Id 0 pads, 1 stands for unknown words, 2 ends a text, 3 and more are `WORDS`; the others are "t17" and so on.
    """
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedTokenizerFast

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=_NUM_TOKENS,
        max_position_embeddings=_NUM_TOKENS,
        bos_token_id=None,
        eos_token_id=2,
        pad_token_id=0,
        hidden_size=384,
        intermediate_size=1024,
        num_hidden_layers=8,
        num_attention_heads=6,
        num_key_value_heads=2,
        tie_word_embeddings=False,
    )
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    words = {f"t{index}": index for index in range(_NUM_TOKENS) if not 3 <= index < 3 + len(WORDS)}
    words |= {name: index for index, name in enumerate(WORDS, 3)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="t1"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="t2", pad_token="t0", unk_token="t1")
    fast.chat_template = _TEMPLATE
    fast.save_pretrained(folder)
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": 2}), encoding="utf-8")
