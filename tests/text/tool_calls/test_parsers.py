"""Parsers of tool calls, by recorded answers of each format."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from baton.text.output_format import TOOL_PARSERS
from baton.text.output_parts import CallArguments, CallEnd, CallStart, Content, OutputPart, joined
from text.tool_calls.recordings import CALLS, LOOKALIKES, TOOLS, Recording


def _read(tool_format: str, pieces: Sequence[str]) -> list[OutputPart]:
    parser = TOOL_PARSERS[tool_format](TOOLS)
    parts = [part for piece in pieces for part in parser.push(piece)]
    return joined([*parts, *parser.finish()])


def _pieces(text: str, cuts: Sequence[int]) -> list[str]:
    borders = [0, *sorted(cuts), len(text)]
    return [text[start:end] for start, end in pairwise(borders)]


@pytest.mark.parametrize("recording", CALLS, ids=lambda recording: f"{recording.tool_format} {recording.text[:30]}")
def test_calls_are_read(recording: Recording) -> None:
    """Names and arguments as the model wrote them, and content without markers."""
    assert _read(recording.tool_format, [recording.text]) == recording.parts


@pytest.mark.parametrize(
    "recording", LOOKALIKES, ids=lambda recording: f"{recording.tool_format} {recording.text[:30]}"
)
def test_what_only_looks_like_a_call_is_content(recording: Recording) -> None:
    """Nothing of it is lost."""
    assert _read(recording.tool_format, [recording.text]) == recording.parts


@pytest.mark.parametrize("recording", [*CALLS, *LOOKALIKES], ids=lambda recording: recording.text[:30])
def test_character_by_character_the_parts_are_the_same(recording: Recording) -> None:
    """The smallest deltas there are."""
    assert _read(recording.tool_format, list(recording.text)) == recording.parts


@given(st.sampled_from([*CALLS, *LOOKALIKES]), st.data())
def test_any_cut_gives_the_parts_of_the_whole(recording: Recording, data: st.DataObject) -> None:
    """Also of an answer that the token limit cut."""
    length = data.draw(st.integers(0, len(recording.text)))
    text = recording.text[:length]
    cuts = data.draw(st.lists(st.integers(0, length), max_size=12))

    assert _read(recording.tool_format, _pieces(text, cuts)) == _read(recording.tool_format, [text])


@pytest.mark.parametrize("recording", CALLS, ids=lambda recording: recording.text[:30])
def test_what_a_limit_leaves_of_a_closing_mark_is_no_content(recording: Recording) -> None:
    """The call is complete; whoever reads it must not be shown notation beside it."""
    if not isinstance(recording.parts[-1], CallEnd):
        return
    for length in range(len(recording.text) - 12, len(recording.text)):
        parts = _read(recording.tool_format, [recording.text[:length]])
        if all(part in parts for part in recording.parts):
            assert parts == recording.parts, recording.text[:length]


_FRAGMENTS = [
    *sorted({marker for parser in TOOL_PARSERS.values() for marker in getattr(parser, "MARKERS", ())}),
    *(
        "</tool_call>",
        '{"name": "now", ',
        '"arguments": {',
        "}",
        "}}",
        '"',
        "\\",
        "[",
        "]",
        "(",
        ")",
        "now",
        ",",
        " ",
        "\n",
    ),
    *("<arg_key>a</arg_key>", "<arg_value>", "</arg_value>", "<|tool_call_argument_begin|>", "<|tool_call_end|>"),
    *("<function=now>", "<parameter=a>", "</parameter>", "</function>", "[ARGS]", "<｜tool▁sep｜>"),
    *("<｜tool▁call▁end｜>", "<｜tool▁calls▁end｜>", "<|message|>", "<|end|>", "to=functions.now", "x", "=1", "😀"),
]


@given(st.sampled_from(sorted(TOOL_PARSERS)), st.lists(st.sampled_from(_FRAGMENTS), max_size=24), st.data())
def test_any_cut_of_any_nonsense_gives_the_parts_of_the_whole(
    tool_format: str, fragments: Sequence[str], data: st.DataObject
) -> None:
    """Markers in any order never make a parser fail or depend on the deltas."""
    text = "".join(fragments)
    cuts = data.draw(st.lists(st.integers(0, len(text)), max_size=12))

    assert _read(tool_format, _pieces(text, cuts)) == _read(tool_format, [text])


@pytest.mark.parametrize(
    "tool_format", ["hermes", "llama_json", "mistral", "deepseek", "harmony", "qwen_coder", "glm", "kimi"]
)
def test_arguments_are_given_out_while_they_come(tool_format: str) -> None:
    """A reader sees the beginning of a long string before its end."""
    recording = next(each for each in CALLS if each.tool_format == tool_format)
    city = "Paris" if "Paris" in recording.text else "Oslo"
    parser = TOOL_PARSERS[tool_format](TOOLS)

    parts = parser.push(recording.text[: recording.text.index(city) + 3])

    assert any(isinstance(part, CallStart) for part in parts)
    assert "".join(part.text for part in parts if isinstance(part, CallArguments)).endswith(city[:3])


@pytest.mark.parametrize("tool_format", TOOL_PARSERS)
def test_plain_text_passes_at_once(tool_format: str) -> None:
    """Nothing is held back of a text that cannot become a call."""
    parser = TOOL_PARSERS[tool_format](TOOLS)

    assert joined([*parser.push("Hel"), *parser.push("lo wor")]) == [Content("Hello wor")]


@pytest.mark.parametrize("recording", CALLS, ids=lambda recording: recording.text[:30])
def test_arguments_of_recorded_calls_are_json_objects(recording: Recording) -> None:
    """As clients parse them."""
    arguments = [
        part.text for part in _read(recording.tool_format, [recording.text]) if isinstance(part, CallArguments)
    ]

    assert all(isinstance(json.loads(each), dict) for each in arguments)
