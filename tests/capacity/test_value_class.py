"""What values that are made often do at run time; that nobody assigns to them is the type checker's to say."""

from __future__ import annotations

from dataclasses import replace

import pytest

from baton.capacity.value_class import value_class


@value_class()
class Pair:
    """A value."""

    left: int
    right: int = 0


@value_class(kw_only=True)
class NamedPair(Pair):
    """A value whose own fields are named."""

    name: str


def test_values_of_equal_fields_are_one_to_sets_and_comparisons() -> None:
    """They are compared, hashed and replaced by their fields."""
    assert replace(Pair(1), right=2) == Pair(1, 2) != Pair(1)
    assert {Pair(1, 2), Pair(1, 2)} == {Pair(1, 2)}
    assert NamedPair(1, name="a") == NamedPair(1, 0, name="a")


def test_they_have_no_other_attributes_than_their_fields() -> None:
    """Slots hold the fields alone."""
    with pytest.raises(AttributeError):
        setattr(Pair(1), "other", 3)  # noqa: B010 - what the type checker would not let pass
