"""Tables on wide and narrow terminals."""

from __future__ import annotations

import io

from rich.console import Console
from rich.table import Table

from baton.cli.terminal.tables import print_table


def _printed(width: int) -> list[str]:
    table = Table("node", "address", "load", title="nodes")
    table.add_row("decode-mlx", "127.0.0.1:40000", "3 run")
    table.add_row("prefill-torch", "127.0.0.1:40001", "-")
    stream = io.StringIO()
    print_table(Console(file=stream, width=width, color_system=None), table)
    return [line.rstrip() for line in stream.getvalue().splitlines()]


def test_a_table_that_fits_is_a_table() -> None:
    """One line per row."""
    (row,) = [line for line in _printed(80) if "decode-mlx" in line]

    assert "127.0.0.1:40000" in row
    assert "3 run" in row


def test_a_table_that_is_too_wide_becomes_paragraphs_without_loss() -> None:
    """Nothing is cut; headings stand before the values, dashes are left out, lines break between facts."""
    assert _printed(30) == [
        "nodes",
        "decode-mlx",
        "    address 127.0.0.1:40000",
        "    load 3 run",
        "prefill-torch",
        "    address 127.0.0.1:40001",
        "",
    ]
