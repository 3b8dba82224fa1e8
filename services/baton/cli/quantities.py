"""Bytes and rates as a person reads them."""

from __future__ import annotations

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
