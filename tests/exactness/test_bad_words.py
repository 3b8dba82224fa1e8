"""What may not be generated is not, and nothing else changes: on any engine, with any placement."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

from baton.engine.request import SamplingParams
from checkpoints import checkpoint, reference_logits
from exactness.handover import generate, start_engine
from exactness.loading import load_runner

NUM_NEW_TOKENS = 32
GREEDY = SamplingParams(temperature=0.0, ignore_eos=True, max_tokens=NUM_NEW_TOKENS)


def _excluded(output: Sequence[int], words: Sequence[Sequence[int]]) -> list[int]:
    """Return the tokens that would complete a word."""
    return [word[-1] for word in words if tuple(output[len(output) - len(word) + 1 :]) == tuple(word[:-1])]


def test_output_without_bad_words_equals_transformers() -> None:
    """Each token is the most probable one of those that complete no word; a prompt's end begins none."""
    prompt = [random.Random(4).randrange(3, 512) for _ in range(21)]
    torch_engine = start_engine(load_runner("torch", checkpoint("qwen3")))
    mlx_engine = start_engine(load_runner("mlx", checkpoint("qwen3")))
    try:
        free = generate(torch_engine, "free", prompt, GREEDY).tokens()
        words = ((free[4],), (free[1], free[2]), (prompt[-1], free[0]), (free[7], free[8], free[9]))
        params = replace(GREEDY, bad_words=words)
        found = generate(torch_engine, "torch", prompt, params).tokens()
        others = [
            generate(mlx_engine, "mlx", prompt, params).tokens(),
            generate(mlx_engine, "torch to mlx", prompt, params, prefill=torch_engine).tokens(),
            generate(torch_engine, "mlx to torch", prompt, params, prefill=mlx_engine).tokens(),
        ]
    finally:
        torch_engine.close()
        mlx_engine.close()

    logits = reference_logits(checkpoint("qwen3"), [*prompt, *found])[len(prompt) - 1 : -1].clone()
    for index in range(NUM_NEW_TOKENS):
        logits[index][_excluded(found[:index], words)] = float("-inf")
    assert found == logits.argmax(-1).tolist()
    assert others == [found] * 3
    assert found[0] == free[0]
    assert found != free
