"""Calls that agents send back."""

from __future__ import annotations

import contextlib
import json
import time

import pytest

from baton.errors import InvalidFieldError
from baton.gateway.generation.generator import AnswerReader
from baton.gateway.generation.tools import parsed_arguments
from baton.text.output_format import TOOL_PARSERS

WHOLE = '{"city": "Par\\"is, {x", "days": [1, -2.5, {"a": null}], "ok": true, "n": {"k": ["v", "w"]}}'


def _is_part(part: object, whole: object) -> bool:
    """Return whether a value is another one that was cut off at its end."""
    if isinstance(part, dict) and isinstance(whole, dict):
        return all(key in whole and _is_part(value, whole[key]) for key, value in part.items())
    if isinstance(part, list) and isinstance(whole, list):
        return len(part) <= len(whole) and all(map(_is_part, part, whole))
    if isinstance(part, str) and isinstance(whole, str):
        return whole.startswith(part)
    return part == whole or (isinstance(part, int | float) and isinstance(whole, int | float))


def test_a_call_that_was_cut_off_has_the_arguments_that_are_there() -> None:
    """Wherever that was, and never fewer than a character before."""
    whole = json.loads(WHOLE)
    parts = [parsed_arguments("f", WHOLE[:length]) for length in range(1, len(WHOLE) + 1)]

    assert parts[-1] == whole
    assert all(_is_part(part, whole) for part in parts)
    assert {len(part) for part in parts} == {0, 1, 2, 3, 4}
    assert parts[WHOLE.index("-2.5") + 5]["days"] == [1, -2.5]


@pytest.mark.parametrize(
    "text", ["nope", '"x', "[1, 2", "{}}", '{"a": 1}}', '{"a": 1,, "b": 2', "{'a': 1}", "1", "null"]
)
def test_what_is_no_beginning_of_an_object_is_refused(text: str) -> None:
    """In words that name the field."""
    with pytest.raises(InvalidFieldError, match=r"calls\[0\]: expected a JSON object"):
        parsed_arguments("calls[0]", text)


@pytest.mark.parametrize("text", ['{"a": [' + "1, " * 100_000, "{" * 100_000, '{"a": ' + "[], " * 100_000])
def test_a_long_text_takes_time_by_its_length(text: str) -> None:
    """Clients choose it; the square of its length would take minutes."""
    begun = time.process_time()
    with contextlib.suppress(InvalidFieldError):
        parsed_arguments("f", text)
    assert time.process_time() - begun < 2.0


@pytest.mark.parametrize(
    ("text", "end"),
    [
        ('<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>', "tool_calls"),
        ('<tool_call>{"name": "f", "arguments": {"a": 1}}', "tool_calls"),
        ('<tool_call>{"name": "f", "arguments": {"a": ', "stop"),
        ("no call", "stop"),
    ],
)
def test_an_answer_that_a_stop_string_cut_amid_a_call_ends_with_no_call(text: str, end: str) -> None:
    """Clients would read its arguments as a whole."""
    reader = AnswerReader(TOOL_PARSERS["hermes"]([]), "hermes")
    reader.push(text)
    reader.finish()

    assert reader.end("stop") == end
