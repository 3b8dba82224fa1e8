"""Tables that stay readable on narrow terminals; bytes and rates as a person reads them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.cells import cell_len
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

_PREFIXES = ("", "k", "M", "G", "T", "P")


def format_rate(per_second: float, unit: str) -> str:
    """Return a number with three significant digits and a decimal prefix, e.g. "1.25 GB/s"."""
    value, index = float(per_second), 0
    while abs(value) >= 999.5 and index < len(_PREFIXES) - 1:
        value, index = value / 1000, index + 1
    return f"{value:.3g} {_PREFIXES[index]}{unit}"


def format_bytes(num_bytes: float) -> str:
    """Return a number of bytes, decimal prefixes, e.g. "1.07 GB"."""
    return format_rate(num_bytes, "B")


_UNBOUNDED_COLUMNS = 10_000
_INDENT = "    "
_SEPARATOR = " · "


def print_table(console: Console, table: Table) -> None:
    """Print a table; where it is wider than the console, each row as a paragraph instead.

    A paragraph begins with the row's first cell; the other cells follow behind their headings, "-" left out.
    """
    unbounded = console.options.update(max_width=_UNBOUNDED_COLUMNS)
    if Measurement.get(console, unbounded, table).maximum <= console.width:
        console.print(table)
        return
    if table.title:
        console.print(table.title, style="bold")
    headings = [str(column.header) for column in table.columns]
    for row, cells in zip(table.rows, zip(*(column.cells for column in table.columns), strict=True), strict=True):
        facts = [
            f"{heading} {cell}" for heading, cell in zip(headings[1:], cells[1:], strict=True) if cell not in ("", "-")
        ]
        console.print(Text(str(cells[0]), style=row.style or "bold"))
        for line in _lines(facts, console.width - len(_INDENT)):
            console.print(_INDENT + line, markup=False, highlight=False, soft_wrap=True)
    console.print()


def _lines(facts: Sequence[str], width: int) -> Iterator[str]:
    """Yield facts as lines that break between facts only."""
    line = ""
    for fact in facts:
        longer = f"{line}{_SEPARATOR}{fact}" if line else fact
        if line and cell_len(longer) > width:
            yield line
            longer = fact
        line = longer
    if line:
        yield line
