"""Names of calls, under which clients send back results."""

from __future__ import annotations

import secrets
import string

_ALPHABET = string.ascii_letters + string.digits
_NUM_CHARACTERS = 24
_NUM_MISTRAL_CHARACTERS = 9
"""Mistral's chat templates refuse any other length."""


def new_call_id(tool_format: str, prefix: str = "call_") -> str:
    """Return a random name, in the form that the format's templates take."""
    if tool_format == "mistral":
        return _random(_NUM_MISTRAL_CHARACTERS)
    return prefix + _random(_NUM_CHARACTERS)


def _random(num_characters: int) -> str:
    return "".join(secrets.choice(_ALPHABET) for _ in range(num_characters))
