"""The bench of prefixes in other nodes' caches."""

from __future__ import annotations

from bench.kv.prefix_pull import Round, table_of


def test_a_length_is_a_line_of_medians() -> None:
    """A slow round changes nothing."""
    rounds = [Round(512, seconds, 4 * seconds, 512, 100, 0.1, True) for seconds in (1.0, 100.0, 2.0)]

    table = table_of([*rounds, Round(64, 1.0, 1.0, 0, 0, 0.0, False)])

    assert rounds[0].times_sooner == 4.0
    assert [list(column.cells) for column in table.columns] == [
        ["512", "64"],
        ["512", "0"],
        ["100", "0"],
        ["2000", "1000"],
        ["8000", "1000"],
        ["4.00", "1.00"],
        ["3 of 3", "0 of 1"],
    ]
