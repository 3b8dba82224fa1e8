"""Types of command line options that refuse a value out of range by the option's name."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from typing import Any


def at_least(low: int) -> Callable[[str], int]:
    """Return the type of a whole number that is `low` or more."""

    def whole_number(text: str) -> int:
        value = int(text)
        if value < low:
            raise argparse.ArgumentTypeError(f"expected {low} or more, got {text}")
        return value

    return whole_number


def positive(text: str) -> float:
    """Return a number above 0."""
    value = float(text)
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"expected a number above 0, got {text}")
    return value


def not_negative(text: str) -> float:
    """Return a number that is 0 or above."""
    value = float(text)
    if not 0 <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"expected 0 or more, got {text}")
    return value


def json_object(text: str) -> dict[str, Any]:
    """Return the fields of a JSON object."""
    try:
        value = json.loads(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"expected a JSON object: {error}") from error
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError(f"expected a JSON object, got {text}")
    return value
