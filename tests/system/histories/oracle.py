"""What the mock model says, from its formula and the tokenizer alone."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from tokenizers import Tokenizer

from baton.engine.runners.mock import load_mock_runner
from baton.engine.runners.mock.state import next_tokens, states_of


class Said(NamedTuple):
    """An output."""

    token_ids: list[int]
    """Its tokens."""
    text: str
    """What they stand for."""


class MockOracle:
    """Knows the output of every prompt.

    Args:
        model_dir: Folder of the model that mocks serve.
        shape: Their `mock_shape`.
    """

    def __init__(self, model_dir: Path, shape: str) -> None:
        info = load_mock_runner(model_dir, model_id="oracle", num_blocks=1, shape=shape).info
        self.vocabulary_size = info.vocabulary_size
        """Tokens that a prompt may have."""
        self._num_layers = len(info.layout.layers)
        self._excluded = frozenset(info.eos_token_ids)
        self._tokenizer = Tokenizer.from_file(str(model_dir / "tokenizer.json"))

    def say(self, prompt: Sequence[int], num_tokens: int) -> Said:
        """Return what follows a prompt."""
        total = states_of(prompt, 0, self._num_layers).sum(dtype=np.uint64, keepdims=True)[0]
        output: list[int] = []
        for position in range(len(prompt), len(prompt) + num_tokens):
            output += next_tokens(total, self.vocabulary_size, self._excluded)
            total += states_of(output[-1:], position, self._num_layers).sum(dtype=np.uint64)
        return Said(output, self._tokenizer.decode(output))
