"""Writes a trained model as the Hugging Face folder that runners load: weights, config, tokenizer, chat template."""

from pathlib import Path

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import GenerationConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from transformers.convert_slow_tokenizer import bytes_to_unicode

from baton.demo.vocabulary import CHAT_TEMPLATE, END, END_ID, MARKERS, PAD, PAD_ID


def export(model: LlamaForCausalLM, folder: Path) -> None:
    """Write the model, rounded to bfloat16, and its tokenizer into the folder, which is made if it does not exist."""
    rounded = LlamaForCausalLM(model.config).to(torch.bfloat16)
    rounded.load_state_dict(model.state_dict())
    rounded.config.dtype = torch.bfloat16
    # mlx-lm reads the flat key only, as folders of older transformers versions carry it
    rounded.config.rope_theta = model.config.rope_parameters["rope_theta"]
    rounded.generation_config = GenerationConfig(do_sample=False, eos_token_id=END_ID, pad_token_id=PAD_ID)
    rounded.save_pretrained(folder)
    new_tokenizer(model.config.max_position_embeddings).save_pretrained(folder)


def new_tokenizer(max_tokens: int) -> PreTrainedTokenizerFast:
    """Return the tokenizer: one token per byte, plus the markers of the chat template.

    Args:
        max_tokens: The longest input that the model takes.
    """
    letters = [letter for _, letter in sorted(bytes_to_unicode().items())]
    vocabulary = {token: token_id for token_id, token in enumerate([*MARKERS, *letters])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(marker, normalized=False, special=True) for marker in MARKERS])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=END,
        pad_token=PAD,
        model_max_length=max_tokens,
        clean_up_tokenization_spaces=False,
        chat_template=CHAT_TEMPLATE,
    )
