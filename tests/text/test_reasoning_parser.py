"""Reasoning that is split off."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from baton.text.reasoning_parser import ReasoningMarkers, ReasoningParser, ReasoningSplit

MARKERS = ReasoningMarkers("<think>", "</think>")


def _split(pieces: Sequence[str], *, is_begun: bool = False) -> ReasoningSplit:
    splitter = ReasoningParser(MARKERS, is_begun=is_begun)
    splits = [*(splitter.push(piece) for piece in pieces), splitter.finish()]
    return ReasoningSplit("".join(each.reasoning for each in splits), "".join(each.rest for each in splits))


@pytest.mark.parametrize(
    ("text", "is_begun", "reasoning", "rest"),
    [
        ("<think>\nHm. 2 < 3\n</think>\n\nYes.", False, "Hm. 2 < 3", "Yes."),
        ("Hm.\n</think>\nYes.", True, "Hm.", "Yes."),
        ("<think></think>Yes.", False, "", "Yes."),
        ("Yes, <think>no</think>", False, "", "Yes, <think>no</think>"),
        ("<think>Hm. ", False, "Hm.", ""),
        ("Hm. </thi", True, "Hm. </thi", ""),
        ("<thi", False, "", "<thi"),
        ("  Yes. ", False, "", "  Yes. "),
        ("<think>a</think>b</think>c", False, "a", "b</think>c"),
    ],
)
def test_reasoning_and_answer_are_told_apart(text: str, is_begun: bool, reasoning: str, rest: str) -> None:
    """Also where the prompt opened the reasoning, and where the answer ends within it."""
    assert _split([text], is_begun=is_begun) == ReasoningSplit(reasoning, rest)


@given(st.lists(st.sampled_from(["<think>", "</think>", "<", "a", " ", "\n", "</th", "b"]), max_size=12), st.data())
def test_any_cut_gives_the_same(fragments: Sequence[str], data: st.DataObject) -> None:
    """What is known depends on the text alone."""
    text = "".join(fragments)
    borders = [0, *sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=8))), len(text)]
    is_begun = data.draw(st.booleans())

    pieces = [text[start:end] for start, end in pairwise(borders)]
    assert _split(pieces, is_begun=is_begun) == _split([text], is_begun=is_begun)


def test_reasoning_is_given_out_while_it_comes() -> None:
    """All but what may be a marker, and space before one."""
    splitter = ReasoningParser(MARKERS, is_begun=True)

    assert [splitter.push(piece) for piece in ("\nHm", ", so </", "b> ")] == [
        ReasoningSplit("Hm", ""),
        ReasoningSplit(", so", ""),
        ReasoningSplit(" </b>", ""),
    ]
