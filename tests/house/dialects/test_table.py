"""One public surface: no dialect of the API learns what the others do not have, unless the table says why."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from baton.gateway.api.openai.schema import ChatBody
from gateway.api.parameters.body_fields import field_paths
from house.dialects.table import DIALECTS, PAGE, Table, page, tables


@pytest.mark.parametrize("table", tables(), ids=["asked", "answered"])
def test_no_dialect_drifts(table: Table) -> None:
    """Every field is in a row, every name is a field, every empty cell has its reason."""
    assert list(table.drift()) == []


def test_the_page_is_what_the_schemas_say() -> None:
    """As `make public-api` writes it."""
    assert PAGE.read_text() == page(), "run `make public-api`"


class _GrownBody(ChatBody, kw_only=True):
    """A body with a field that was added in one dialect alone."""

    invented: int | None = None


def _drift(fields: frozenset[str], index: int) -> Iterator[str]:
    table = tables()[0]
    changed = [fields if place == index else each for place, each in enumerate(table.fields)]
    return table._replace(fields=changed).drift()


def test_a_new_field_without_an_entry_is_drift() -> None:
    """Also one that a single dialect gets, or gets lost in."""
    grown = frozenset(field_paths(_GrownBody)) - frozenset(field_paths(ChatBody))
    asked = tables()[0].fields

    assert list(_drift(asked[1] | grown, 1)) == [f"{DIALECTS[1]}: invented is in no row"]
    assert "temperature: an empty cell, and no reason" in _drift(asked[3] - {"temperature"}, 3)
    assert "choice_count is in a row and in no dialect" in _drift(asked[0] - {"choice_count"}, 0)


def test_an_entry_that_is_no_longer_true_is_drift() -> None:
    """A reason why others lack it, once they have it."""
    asked = tables()[0].fields
    (meaning,) = [name for name, row in tables()[0].rows.items() if row["names"].startswith("sampling.top_k ")]

    assert list(_drift(asked[3] | {"top_k"}, 3)) == [f"{meaning}: a reason, and no empty cell"]
