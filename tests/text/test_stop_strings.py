"""Stop strings."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from baton.text.markers import StopScanner


def _scan(stops: list[str], parts: list[str]) -> tuple[str, str | None]:
    scanner, shown = StopScanner(stops), ""
    for part in parts:
        text, stop = scanner.push(part)
        shown += text
        if stop is not None:
            return shown, stop
    return shown + scanner.flush(), None


def test_a_stop_string_across_parts_is_cut_exactly() -> None:
    """No character of the stop string is shown, wherever it is cut."""
    assert _scan(["END"], ["one E", "N", "D two"]) == ("one ", "END")


def test_text_that_only_begins_like_a_stop_string_is_shown_once_it_is_clear() -> None:
    """Held-back text comes out complete."""
    scanner = StopScanner(["abc"])

    assert scanner.push("xab").text == "x"
    assert scanner.push("d").text == "abd"


def test_held_text_is_shown_when_the_generation_ends() -> None:
    """The beginning of a stop string is ordinary text if nothing follows."""
    assert _scan(["abc"], ["xab"]) == ("xab", None)


def test_of_two_stop_strings_the_one_complete_first_ends_the_text() -> None:
    """The short one inside the beginning of a long one wins, in one part as in many."""
    assert _scan(["abc", "b"], ["abc"]) == ("a", "b")


def test_without_stop_strings_everything_passes() -> None:
    """Nothing is held back for no reason."""
    assert StopScanner([]).push("abc") == ("abc", None)


@given(
    stops=st.lists(st.text("ab", min_size=1, max_size=4), max_size=4),
    text=st.text("abc", max_size=30),
    cuts=st.lists(st.integers(0, 30), max_size=6),
)
def test_the_result_does_not_depend_on_the_cuts(stops: list[str], text: str, cuts: list[int]) -> None:
    """Any way of cutting the text gives what a character at a time gives."""
    borders = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    parts = [text[begin:end] for begin, end in itertools.pairwise(borders)]

    assert _scan(stops, parts) == _scan(stops, list(text))
