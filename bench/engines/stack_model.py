"""A model for servers under load: 16 million random weights, and a tokenizer that knows the words of the prompts."""

from __future__ import annotations

from pathlib import Path

from bench.vocabulary import WORDS

_VOCABULARY_SIZE = 4096


def write_stack_model(folder: Path) -> None:
    """Write a Hugging Face folder: eight Llama layers, a word-level tokenizer, and a template that adds nothing."""
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedTokenizerFast

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=_VOCABULARY_SIZE,
        hidden_size=384,
        intermediate_size=1024,
        num_hidden_layers=8,
        num_attention_heads=6,
        num_key_value_heads=2,
        max_position_embeddings=4096,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=2,
        pad_token_id=0,
    )
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    names = [*(f"t{index}" for index in range(3)), *WORDS]
    names += [f"t{index}" for index in range(len(names), _VOCABULARY_SIZE)]
    tokenizer = Tokenizer(models.WordLevel({name: index for index, name in enumerate(names)}, unk_token="t1"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="t2", pad_token="t0", unk_token="t1")
    fast.chat_template = "{% for message in messages %}{{ message['content'] }} {% endfor %}"
    fast.save_pretrained(folder)
