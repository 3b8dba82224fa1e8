"""Frame of a client's script: runs features by name, and tells of each in one line of JSON.

A feature is a function that raises what went wrong, and may return a note for the table. A script needs two variables:

    BATON_URL=http://127.0.0.1:8000 BATON_MODEL=baton-demo python openai_client.py create stream
"""

from __future__ import annotations

import json
import os
import sys
import time
import urllib.request
from collections.abc import Callable, Mapping
from typing import Any

Feature = Callable[[], str | None]

URL = os.environ.get("BATON_URL", "http://127.0.0.1:8000")
"""The gateway's, without /v1."""
MODEL = os.environ.get("BATON_MODEL", "baton-demo")
"""Served name."""
MODEL_DIR = os.environ.get("BATON_MODEL_DIR", "")
"""The checkpoint's folder, for clients that want its tokenizer."""
KEY = "none"

QUESTION = "What is 12 + 30?"
ANSWER = "12 + 30 = 42"
"""What the demo model says to it at temperature 0."""
CITIES = ["Paris", "Oslo"]
PARAMETERS: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"type": "string", "enum": CITIES}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
    "required": ["city", "days"],
    "additionalProperties": False,
}
"""Of the tool `get_weather`."""
SUM: dict[str, Any] = {
    "type": "object",
    "properties": {"answer": {"type": "integer", "minimum": 0, "maximum": 99}, "is_even": {"type": "boolean"}},
    "required": ["answer", "is_even"],
    "additionalProperties": False,
}
"""Schema of a structured answer."""
LONG_QUESTION = "Remember: " + " ".join(f"{n} + {n + 1} = {2 * n + 1}." for n in range(60)) + " " + QUESTION
"""Some hundreds of tokens, for the prefix cache."""

_ABORT_SECONDS = 3.0
_MESSAGE_CHARACTERS = 400


class AbsentError(Exception):
    """What a feature needs is not on this machine: its cell is skipped."""


def run(features: Mapping[str, Feature]) -> None:
    """Run the features that the command line names, or all."""
    for name in sys.argv[1:] or features:
        started = time.monotonic()
        line: dict[str, Any] = {"feature": name}
        try:
            line["note"] = features[name]() or ""
        except AbsentError as error:
            line["skip"] = str(error)
        except Exception as error:
            text = " ".join(str(error).split()) or "no message"
            line["error"] = f"{type(error).__name__}: {text}"[:_MESSAGE_CHARACTERS]
        line["seconds"] = round(time.monotonic() - started, 2)
        print(json.dumps(line), flush=True)


def expect(actual: object, expected: object, what: str) -> None:
    """Raise if two values differ."""
    if actual != expected:
        raise AssertionError(f"{what}: expected {expected!r}, got {actual!r}")


def expect_true(condition: object, what: str) -> None:
    """Raise if a condition does not hold; `what` says what was seen."""
    if not condition:
        raise AssertionError(what)


def expect_weather(arguments: Any) -> None:
    """Raise if these are no arguments of `get_weather`."""
    is_right = arguments.keys() == {"city", "days"} and arguments["city"] in CITIES and 1 <= arguments["days"] <= 9
    expect_true(is_right, f"arguments that the schema forbids: {arguments}")


def expect_sum(value: Any) -> None:
    """Raise if a structured answer is not of its schema."""
    is_right = (
        value.keys() == {"answer", "is_even"} and 0 <= value["answer"] <= 99 and value["is_even"] in (True, False)
    )
    expect_true(is_right, f"an answer that the schema forbids: {value}")


def expect_refusal(error_type: type[Exception], call: Callable[[], object], *words: str) -> None:
    """Raise if a call does not raise this error with these words."""
    try:
        call()
    except error_type as error:
        missing = [word for word in words if word not in str(error)]
        expect(missing, [], f"words of {error}")
        return
    raise AssertionError(f"no {error_type.__name__}")


def cached_share(num_cached: int | None, num_prompt: int) -> str:
    """Return the share as a note; raise where it is under 0.9."""
    share = (num_cached or 0) / num_prompt
    expect_true(share >= 0.9, f"cached share of the second turn {share:.2f} of {num_prompt} tokens")
    return f"{share:.2f}"


def expect_idle() -> None:
    """Raise if the gateway still answers a request, this question aside, when an aborted one should be gone."""
    deadline = time.monotonic() + _ABORT_SECONDS
    while (active := _num_active()) > 1:
        expect_true(time.monotonic() < deadline, f"{active - 1} requests run {_ABORT_SECONDS:g} s after the abort")
        time.sleep(0.02)


def _num_active() -> int:
    with urllib.request.urlopen(f"{URL}/metrics", timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    return next(int(float(line.split()[-1])) for line in lines if line.startswith("baton_gateway_active_requests "))
