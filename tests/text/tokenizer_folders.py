"""Tiny tokenizers of three families, built from nothing."""

from __future__ import annotations

from pathlib import Path

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

CHAT_TEMPLATE = (
    "{% for message in messages %}<|{{ message['role'] }}|>{{ message['content'] }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
SPECIAL_TOKENS = ["<|system|>", "<|user|>", "<|assistant|>", "<|end|>"]


def byte_level() -> PreTrainedTokenizerFast:
    """Return a byte-level BPE tokenizer with some merges, one of them across the bytes of a character."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = [("h", "e"), ("l", "l"), ("he", "ll"), ("hell", "o"), ("Ġ", "w"), ("ð", "Ł"), ("ðŁ", "ĺ"), ("Ã", "©")]
    vocab = {token: index for index, token in enumerate([*alphabet, *("".join(pair) for pair in merges)])}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return _finish(tokenizer)


def sentencepiece_like() -> PreTrainedTokenizerFast:
    """Return a tokenizer with "▁" for spaces and bytes for what is not in the vocabulary, as Llama 2 has it."""
    letters = [*"▁abcdehlorw.é", "▁h", "ll", "▁w"]
    vocab = {
        token: index for index, token in enumerate(["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), *letters])
    }
    tokenizer = Tokenizer(
        models.BPE(vocab=vocab, merges=[("▁", "h"), ("l", "l"), ("▁", "w")], unk_token="<unk>", byte_fallback=True)
    )
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return _finish(tokenizer)


def metaspace() -> PreTrainedTokenizerFast:
    """Return a tokenizer with a Metaspace decoder, as T5 has it."""
    vocab = {token: index for index, token in enumerate(["<unk>", *"▁abcdehlorw.é", "▁a", "▁▁"])}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[("▁", "a"), ("▁", "▁")], unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    return _finish(tokenizer)


def word_piece() -> PreTrainedTokenizerFast:
    """Return a WordPiece tokenizer, as BERT has it."""
    words = ["[UNK]", "hello", "world", "##ly", "##s", ".", ",", "'", "n", "##'t", "do", "not", "é", "##é"]
    tokenizer = Tokenizer(models.WordPiece({word: index for index, word in enumerate(words)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    return _finish(tokenizer)


def save(tokenizer: PreTrainedTokenizerFast, folder: Path) -> Path:
    """Write a tokenizer as a model folder has it."""
    tokenizer.save_pretrained(folder)
    return folder


def _finish(tokenizer: Tokenizer) -> PreTrainedTokenizerFast:
    tokenizer.add_special_tokens(SPECIAL_TOKENS)
    tokenizer.add_tokens(["[tool é]"])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, chat_template=CHAT_TEMPLATE, eos_token="<|end|>")
