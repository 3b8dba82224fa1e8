"""ShareGPT conversations become sessions."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random

import pytest

from bench.workloads.dataset import Turn
from bench.workloads.sharegpt import read_sharegpt


def write(path: Path, *conversations: list[tuple[str, str]]) -> Path:
    """Write conversations of (who, what) in the dump's format."""
    rows = [{"conversations": [{"from": who, "value": what} for who, what in rows]} for rows in conversations]
    path.write_text(json.dumps(rows))
    return path


def test_questions_become_turns_of_the_answers_lengths(tmp_path: Path) -> None:
    """An answer of 40 characters asks for 10 tokens; an answer of few for 4."""
    path = write(tmp_path / "s.json", [("human", "Why?"), ("gpt", "x" * 40), ("human", "And?"), ("gpt", "so")])

    (session,) = read_sharegpt(path, Random(1), 5, max_turns=2)

    assert session.turns == (Turn("Why?", 10), Turn("And?", 4))


def test_only_the_first_turns_are_asked(tmp_path: Path) -> None:
    """`max_turns` cuts a conversation."""
    path = write(tmp_path / "s.json", [("human", "1"), ("gpt", "a"), ("human", "2"), ("gpt", "b")])

    assert len(read_sharegpt(path, Random(1), 5)[0].turns) == 1


def test_questions_without_an_answer_are_left_out(tmp_path: Path) -> None:
    """Where none has one, the file is refused by name."""
    with pytest.raises(ValueError, match=r"s\.json holds no question"):
        read_sharegpt(write(tmp_path / "s.json", [("human", "?")], [("gpt", "!")]), Random(1), 5)
