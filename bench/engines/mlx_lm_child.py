"""mlx-lm's BatchGenerator as a child process of `baton bench mlx-decode`, from caches that are there already."""

from __future__ import annotations

import sys
import time
from itertools import pairwise
from pathlib import Path
from random import Random

import mlx.core as mx
from mlx_lm.generate import BatchGenerator
from mlx_lm.models.cache import KVCache
from mlx_lm.utils import load_model

from bench.processes import answer_lines

CONTEXT = 512
_MAX_BATCH_SIZE = 64
_JOIN_TOKENS = 3


class MlxLm:
    """A model and mlx-lm's own continuous batching."""

    def __init__(self, folder: Path) -> None:
        mx.set_default_device(mx.cpu)
        self._model, self._config = load_model(folder)
        heads = self._config["num_key_value_heads"]
        head_dim = self._config["hidden_size"] // self._config["num_attention_heads"]
        self._kv = [mx.random.normal((1, heads, CONTEXT, head_dim)) for _ in range(2)]
        mx.eval(self._kv)

    def measure(self, size: int, num_tokens: int, num_joins: int, seed: int) -> dict[str, object]:
        """Return what it cost to decode `size` requests together, as Baton's child does."""
        random = Random(seed)
        generator = BatchGenerator(
            self._model, completion_batch_size=_MAX_BATCH_SIZE, prefill_batch_size=_MAX_BATCH_SIZE
        )
        per_join = max(1, num_tokens // size)
        lengths = [num_tokens if not num_joins else per_join * (index + 1) for index in range(size)]
        self._insert(generator, random, lengths)
        started, times, count = time.process_time(), [], 0
        num_living, num_waiting = size, num_joins
        while num_living:
            responses = generator.next_generated()
            times.append(time.perf_counter())
            count += len(responses)
            num_left = sum(response.finish_reason is not None for response in responses)
            num_entering = min(num_left, num_waiting)
            num_waiting -= num_entering
            num_living += num_entering - num_left
            if num_entering:
                self._insert(generator, random, [num_tokens] * num_entering)
        seconds = time.process_time() - started
        generator.close()
        gaps = [round(later - earlier, 5) for earlier, later in pairwise(times)]
        return {"cpu_seconds": seconds, "tokens": count, "gaps": gaps}

    def measure_joins(
        self, size: int, prompt_tokens: int, num_joins: int, num_steps: int, seed: int
    ) -> dict[str, object]:
        """Return when running requests got their tokens while others joined them, as Baton's child does."""
        random = Random(seed)
        generator = BatchGenerator(
            self._model, completion_batch_size=_MAX_BATCH_SIZE, prefill_batch_size=_MAX_BATCH_SIZE
        )
        total = (2 * num_joins + 2) * num_steps
        self._insert(generator, random, [2 * total] * size)
        moments: list[float] = []
        marks: list[int] = []
        while len(moments) < total:
            if len(generator.next_generated()) >= size:
                moments.append(time.perf_counter())
            if len(marks) < num_joins and len(moments) == 2 * num_steps * (len(marks) + 1):
                marks.append(len(moments))
                if prompt_tokens:
                    prompt = [random.randrange(10, self._config["vocab_size"]) for _ in range(prompt_tokens)]
                    generator.insert([prompt], [_JOIN_TOKENS])
                else:
                    self._insert(generator, random, [_JOIN_TOKENS])
        generator.close()
        return {"gaps": [round(later - earlier, 5) for earlier, later in pairwise(moments)], "marks": marks}

    def _insert(self, generator: BatchGenerator, random: Random, lengths: list[int]) -> None:
        prompts = [[random.randrange(10, self._config["vocab_size"])] for _ in lengths]
        generator.insert(prompts, lengths, caches=[self._cache() for _ in lengths])

    def _cache(self) -> list[KVCache]:
        """Return a cache per layer; the arrays are the same for all, because the generator copies them."""
        caches = []
        for _ in self._model.layers:
            cache = KVCache()
            cache.keys, cache.values, cache.offset = *self._kv, CONTEXT
            caches.append(cache)
        return caches


def main(folder: str) -> None:
    """Answer until standard input ends."""
    system = MlxLm(Path(folder))
    answer_lines(lambda asked: (system.measure_joins if "prompt_tokens" in asked else system.measure)(**asked))


if __name__ == "__main__":
    main(sys.argv[1])
