"""What command lines share: types of options that refuse a value by the option's name, and words on the terminal."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

ValueT = TypeVar("ValueT")
NumberT = TypeVar("NumberT", int, float)


def at_least(low: NumberT) -> Callable[[str], NumberT]:
    """Return the type of a number that is `low` or more, and whole if that is of type int."""

    def number(text: str) -> NumberT:
        value = type(low)(text)
        if not low <= value < float("inf"):
            raise argparse.ArgumentTypeError(f"expected {low:g} or more, got {text}")
        return value

    return number


def positive(text: str) -> float:
    """Return a number above 0."""
    value = float(text)
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"expected a number above 0, got {text}")
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


def existing_file(text: str) -> Path:
    """Return the path of a file that there is."""
    path = Path(text)
    if not path.is_file():
        raise argparse.ArgumentTypeError(f"there is no file {text}")
    return path


def list_of(kind: Callable[[str], ValueT]) -> Callable[[str], list[ValueT]]:
    """Return the type of values separated by commas."""

    def values(text: str) -> list[ValueT]:
        return [kind(part) for part in text.split(",")]

    return values


def engine_pair(text: str) -> tuple[str, ...]:
    """Return the engines of two nodes: both mocks, or each torch or MLX."""
    engines = tuple(text.split(","))
    if len(engines) != 2 or not (set(engines) <= {"torch", "mlx"} or set(engines) == {"mock"}):
        raise argparse.ArgumentTypeError(f"expected mock,mock or two of torch and mlx, got {text}")
    return engines


def say(text: str) -> None:
    """Tell whoever waits how far a run has come."""
    print(f"[{time.strftime('%H:%M:%S')}] {text}", file=sys.stderr, flush=True)
