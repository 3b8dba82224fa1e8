"""Computes what standard input tells, by mlx-lm alone, and prints the seconds that it took; argument: folder."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
from mlx_lm.models.cache import make_prompt_cache
from mlx_lm.utils import load_model


class Rig:
    """A model of mlx-lm; each token is read before the next but one is begun, as its generator does."""

    def __init__(self, folder: Path) -> None:
        self._model, config = load_model(folder)
        self._num_tokens = int(config["vocab_size"])
        self._random = np.random.default_rng(0)

    def seconds(self, num_sequences: int, num_tokens: int, num_before: int) -> float:
        """Return the time of decoding so many tokens of each sequence after a prompt; of 0, of the prompt."""
        prompts = mx.array(self._random.integers(3, self._num_tokens, (num_sequences, num_before)))
        cache = make_prompt_cache(self._model)
        began = time.perf_counter()
        token = self._next(prompts, cache)
        mx.eval(token)
        if num_tokens:
            began = time.perf_counter()
        for _ in range(num_tokens):
            later = self._next(token, cache)
            mx.async_eval(later)
            token.tolist()
            token = later
        mx.eval(token)
        return time.perf_counter() - began

    def _next(self, token_ids: mx.array, cache: list[Any]) -> mx.array:
        return mx.argmax(self._model(token_ids, cache=cache)[:, -1:], axis=-1)


def main() -> None:
    """Serve orders until the input ends."""
    rig = Rig(Path(sys.argv[1]))
    print("ready", flush=True)
    for line in sys.stdin:
        kind, *numbers = line.split()
        print(rig.seconds(1, 0, int(numbers[0])) if kind == "prompt" else rig.seconds(*map(int, numbers)), flush=True)


if __name__ == "__main__":
    main()
