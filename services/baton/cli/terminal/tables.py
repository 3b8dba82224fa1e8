"""Tables that stay readable on narrow terminals; bytes and rates as a person reads them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich import box
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


def titled_table(title: str, *headings: str) -> Table:
    """Return an empty table with a title over its left edge."""
    return Table(
        *headings, box=box.SIMPLE_HEAD, collapse_padding=True, pad_edge=False, title=title, title_justify="left"
    )


_UNBOUNDED_COLUMNS = 10_000
_INDENT = "    "
_SEPARATOR = " · "


def print_table(console: Console, table: Table) -> None:
    """Print a table; where it is wider than the console, with its rows as columns, or each row as a paragraph.

    Rows become columns where several of them, or all, fit beside the headings; what is left goes below. A paragraph
    begins with the row's first cell; the other cells follow behind their headings, "-" left out.
    """
    if _fits(console, table):
        console.print(table)
        return
    if turned := _turned(console, table):
        for part in turned:
            console.print(part)
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


def _fits(console: Console, table: Table) -> bool:
    unbounded = console.options.update(max_width=_UNBOUNDED_COLUMNS)
    return Measurement.get(console, unbounded, table).maximum <= console.width


def _turned(console: Console, table: Table) -> list[Table]:
    """Return a table with its rows as columns, in parts that fit; none where only one row of several would."""
    parts: list[Table] = []
    for end in range(table.row_count, 0, -1):  # the longest beginning that fits
        beginning = _columns_of(table, range(end))
        if _fits(console, beginning):
            if end == 1 < table.row_count:
                return []
            starts = range(0, table.row_count, end)
            parts = [_columns_of(table, range(start, min(start + end, table.row_count))) for start in starts]
            break
    return parts if all(_fits(console, part) for part in parts) else []


def _columns_of(table: Table, rows: range) -> Table:
    """Return some rows of a table as columns, each in its row's style."""
    cells = [list(column.cells) for column in table.columns]
    turned = Table(box=table.box, collapse_padding=True, pad_edge=False, title=table.title, title_justify="left")
    turned.add_column(table.columns[0].header, no_wrap=True)
    for row in rows:
        turned.add_column(cells[0][row], no_wrap=True, style=table.rows[row].style or "")
    for column, texts in zip(table.columns[1:], cells[1:], strict=True):
        turned.add_row(column.header, *(texts[row] for row in rows))
    return turned


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
