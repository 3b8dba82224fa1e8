"""Candidates as text."""

from __future__ import annotations

from dataclasses import replace

import pytest

from baton.capacity.placement import place
from baton.capacity.placement_table import format_seconds, plan_rows
from baton.capacity.snapshot import ClusterSnapshot, LowerPrefix, PlacementRequest, TierRates
from capacity.samples import TEN_GIGABIT, node, pair


def test_rows_are_ordered_and_say_what_was_chosen() -> None:
    """The cheapest comes first as chosen; the others say how much dearer they are."""
    rows = plan_rows(place(pair(), PlacementRequest(8192, 32)).candidates)

    assert [(row.decode, row.prefill) for row in rows] == [("mac", "dgx"), ("mac", "local")]
    assert rows[0].note == "chosen, link rate declared"
    assert rows[1].note == "+4.08 s"


def test_infeasible_rows_show_the_reason_and_no_times() -> None:
    """A row without an estimate has dashes and its reason."""
    cluster = replace(pair(), links={("dgx", "mac"): replace(TEN_GIGABIT, mismatch="dtype differs")})

    row = plan_rows(place(cluster, PlacementRequest(100, 10)).candidates)[-1]

    assert row.note == "dtype differs"
    assert row.total == "-"


def test_nothing_to_show_is_no_row() -> None:
    """An empty cluster has no candidates."""
    assert plan_rows([]) == []


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0"), (1.234, "1.23 s"), (0.0268, "26.8 ms"), (3.2e-5, "32 µs"), (4321.0, "4321 s"), (0.9996, "1 s")],
)
def test_durations_have_three_digits_in_a_fitting_unit(seconds: float, text: str) -> None:
    """Seconds, milliseconds or microseconds, whichever reads best."""
    assert format_seconds(seconds) == text


def test_a_preferred_row_may_be_dearer_than_the_next() -> None:
    """Where a policy chose, cheaper rows say by how much."""
    rows = plan_rows(place(pair(), PlacementRequest(8192, 32), policy="local").candidates)

    assert [row.note for row in rows] == ["chosen", "-4.08 s, link rate declared"]


def test_a_pull_is_told_with_its_tokens() -> None:
    """Its wait stands where a transfer's exposed part stands."""
    nodes = (node("a", "decode", "m3-ultra"), node("b", "decode", "m3-ultra"))
    cluster = ClusterSnapshot(nodes, default_link=TEN_GIGABIT, holder_ids={"a"})

    rows = plan_rows(place(cluster, PlacementRequest(8192, 32, cached_tokens={"a": 8000})).candidates)

    assert [(row.decode, row.prefill) for row in rows] == [("a", "local"), ("b", "local"), ("b", "local")]
    assert rows[1].note.endswith(", 8000 tokens from a, link rate declared")
    assert rows[1].transfer == "839 ms"
    assert rows[1].exposed != rows[2].exposed == "0"


def test_what_a_node_brings_back_is_told() -> None:
    """Its wait stands where a pull's does."""
    mac = replace(node("a", "decode", "m3-ultra"), tier_rates=TierRates(10e9, 2e9, 1000))
    cluster = ClusterSnapshot((mac,), default_link=TEN_GIGABIT)
    request = PlacementRequest(8192, 32, lower_tokens={"a": LowerPrefix(0, 8000, 8000)})

    (row,) = plan_rows(place(cluster, request).candidates)

    assert row.note == "chosen, 8000 tokens from host memory or disk"
    assert (row.cached, row.exposed) == ("8000/8000", "629 ms")
