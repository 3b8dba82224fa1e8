"""A tokenizer of single bytes: token ids are predictable, and nothing is loaded from a folder."""

from __future__ import annotations

from functools import cache

from tokenizers import Tokenizer, decoders, models, pre_tokenizers

EOS = 256
VOCABULARY_SIZE = 300
"""More rows than the tokenizer has tokens, as models have."""


@cache
def _tokenizer() -> Tokenizer:
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={letter: index for index, letter in enumerate(letters)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<end>"])
    return tokenizer


def tokenizer_text() -> str:
    """Return it as tokenizer.json."""
    text: str = _tokenizer().to_str()
    return text


def tokens_of(text: str) -> list[int]:
    """Return a text as tokens."""
    return list(_tokenizer().encode(text).ids)


def text_of(token_ids: list[int]) -> str:
    """Return tokens as a text."""
    text: str = _tokenizer().decode(token_ids)
    return text
