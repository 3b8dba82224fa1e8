"""Incremental detokenization."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from baton.text.detokenizer import ByteLevelDetokenizer, Detokenizers, WindowDetokenizer
from baton.text.tokenizer import Tokenizer
from text.tokenizer_folders import byte_level, metaspace, sentencepiece_like, word_piece

TOKENIZERS = {
    "byte level": Tokenizer(byte_level()),
    "sentencepiece": Tokenizer(sentencepiece_like()),
    "metaspace": Tokenizer(metaspace()),
    "wordpiece": Tokenizer(word_piece()),
}


def _parts(tokenizer: Tokenizer, token_ids: list[int], step: int = 1) -> list[str]:
    detokenizer = Detokenizers(tokenizer).make()
    parts = [detokenizer.push(token_ids[start : start + step]) for start in range(0, len(token_ids), step)]
    return [*parts, detokenizer.flush()]


@pytest.mark.parametrize("name", TOKENIZERS)
def test_any_tokens_decode_as_they_do_all_at_once(name: str) -> None:
    """Parts joined equal the whole, for tokens no model would write, ids outside the vocabulary included."""
    tokenizer = TOKENIZERS[name]

    @settings(max_examples=300, deadline=None)
    @given(token_ids=st.lists(st.integers(0, tokenizer.vocabulary_size + 2), max_size=24), step=st.integers(1, 3))
    def check(token_ids: list[int], step: int) -> None:
        assert "".join(_parts(tokenizer, token_ids, step)) == tokenizer.decode(token_ids)

    check()


@pytest.mark.parametrize("name", ["byte level", "sentencepiece"])
def test_any_text_comes_back_without_half_a_character(name: str) -> None:
    """No part of a valid text has a replacement character in it. Names of special tokens are no text."""
    tokenizer = TOKENIZERS[name]
    special = [tokenizer.piece(token_id) or "" for token_id in tokenizer.special_token_ids]
    texts = st.text(st.characters(exclude_characters="\ufffd▁", exclude_categories=["Cs"]), max_size=20)

    @settings(max_examples=200, deadline=None)
    @given(text=texts.filter(lambda text: not any(marker in text for marker in special)))
    def check(text: str) -> None:
        parts = _parts(tokenizer, tokenizer.encode(text))

        assert not any("\ufffd" in part for part in parts)
        assert "".join(parts) == text

    check()


def test_an_emoji_of_four_bytes_comes_out_in_one_part() -> None:
    """A character split over tokens is held back until it is whole."""
    tokenizer = TOKENIZERS["byte level"]
    parts = _parts(tokenizer, tokenizer.encode("a😀b"))

    assert [part for part in parts if part] == ["a", "😀", "b"]


def test_tokens_that_end_inside_a_character_say_so_at_the_end() -> None:
    """The broken rest becomes one replacement character, as decoding the whole has it."""
    tokenizer = TOKENIZERS["byte level"]
    token_ids = tokenizer.encode("😀")[:-1]

    assert _parts(tokenizer, token_ids)[-1] == "\ufffd"


def test_byte_level_vocabularies_take_the_fast_way() -> None:
    """Only they can be decoded byte by byte."""
    assert isinstance(Detokenizers(TOKENIZERS["byte level"]).make(), ByteLevelDetokenizer)
    assert isinstance(Detokenizers(TOKENIZERS["metaspace"]).make(), WindowDetokenizer)


def test_the_bytes_of_one_token_are_those_it_stands_for() -> None:
    """Half a character has bytes, though no text."""
    tokenizer = TOKENIZERS["byte level"]
    token_ids = tokenizer.encode(" w😀")

    assert b"".join(Detokenizers(tokenizer).token_bytes(token_id) for token_id in token_ids) == " w😀".encode()
    assert Detokenizers(TOKENIZERS["sentencepiece"]).token_bytes(1 + 0xF0) == b"\xf0"


@pytest.mark.parametrize("name", TOKENIZERS)
def test_kept_special_tokens_are_written_by_name_where_they_stand(name: str) -> None:
    """Text on either side of one is decoded as if it stood alone; other special tokens have no text."""
    tokenizer = TOKENIZERS[name]
    kept, dropped = tokenizer.special_tokens(["<|user|>", "<|assistant|>"]).values()
    ordinary = st.integers(0, tokenizer.vocabulary_size + 2).filter(lambda token_id: token_id != kept)
    segments = st.lists(st.lists(ordinary | st.just(dropped), max_size=8), min_size=1, max_size=4)

    @settings(max_examples=200, deadline=None)
    @given(segments=segments, step=st.integers(1, 3))
    def check(segments: list[list[int]], step: int) -> None:
        token_ids = [token_id for segment in segments for token_id in [*segment, kept]]
        detokenizer = Detokenizers(tokenizer).make(frozenset([kept]))
        parts = [detokenizer.push(token_ids[start : start + step]) for start in range(0, len(token_ids), step)]

        expected = "".join(tokenizer.decode(segment) + "<|user|>" for segment in segments)
        assert "".join([*parts, detokenizer.flush()]) == expected

    check()
