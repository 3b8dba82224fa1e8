"""Damages request bodies at random, reproducibly."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

_STRANGE_VALUES: Sequence[Any] = (
    None,
    True,
    0,
    -1,
    1.5,
    10**12,
    -(2**63),
    2**64,
    1e308,
    "",
    "a",
    "\u0000",
    "\U0001f600" * 50,
    "1",
    [],
    {},
    [[]],
    [None],
    {"": None},
    ["a", 1],
    [1] * 300,
    {"1": 1},
    {"type": "text"},
)
_EXTRA_KEYS = (
    "n",
    "stop",
    "seed",
    "top_k",
    "top_p",
    "min_p",
    "logit_bias",
    "logprobs",
    "top_logprobs",
    "stream_options",
    "presence_penalty",
    "repetition_penalty",
    "min_tokens",
    "max_completion_tokens",
    "stop_token_ids",
    "ignore_eos",
    "cache_salt",
    "priority",
    "tools",
    "response_format",
    "suffix",
    "echo",
    "nonsense",
)


class Mutator:
    """Makes damaged bodies; the same seed gives the same ones."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._damages: Sequence[Callable[[bytes], bytes]] = (
            self._change_bytes,
            self._cut,
            self._repeat_part,
            self._change_value,
            self._change_value,
            self._change_value,
        )

    def body(self, sound: Mapping[str, Any]) -> bytes:
        """Return a body that differs from a sound one in one to three places."""
        data = json.dumps(sound).encode()
        for _ in range(self._random.randint(1, 3)):
            data = self._random.choice(self._damages)(data)
        return data

    def _change_bytes(self, data: bytes) -> bytes:
        changed = bytearray(data)
        for _ in range(self._random.randint(1, 3)):
            if changed:
                changed[self._random.randrange(len(changed))] = self._random.randrange(256)
        return bytes(changed)

    def _cut(self, data: bytes) -> bytes:
        return data[: self._random.randrange(len(data) + 1)]

    def _repeat_part(self, data: bytes) -> bytes:
        begin, end = sorted(self._random.randrange(len(data) + 1) for _ in range(2))
        return data[:end] + data[begin:end] + data[end:]

    def _change_value(self, data: bytes) -> bytes:
        try:
            document = json.loads(data)
        except ValueError:
            return data
        if isinstance(document, dict) and self._random.random() < 0.5:
            document[self._random.choice(_EXTRA_KEYS)] = self._random.choice(_STRANGE_VALUES)
            return json.dumps(document).encode()
        return json.dumps(self._replace_somewhere(document)).encode()

    def _replace_somewhere(self, value: Any) -> Any:
        """Return the value with one of its parts, at any depth, replaced or removed."""
        if not isinstance(value, dict | list) or not value or self._random.random() < 0.3:
            return self._random.choice(_STRANGE_VALUES)
        key = self._random.choice(list(value) if isinstance(value, dict) else range(len(value)))
        changed: Any = value.copy()
        if self._random.random() < 0.2:
            del changed[key]
        else:
            changed[key] = self._replace_somewhere(value[key])
        return changed
