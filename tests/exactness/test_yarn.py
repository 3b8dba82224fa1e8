"""YaRN gives transformers' tokens beyond the original context, alone and batched, on each engine and between them."""

from __future__ import annotations

import random

import pytest

from checkpoints import YARN_NAMES, YarnCheckpointName, checkpoint, reference_generate
from exactness.handover import generate, greedy, start_engine
from exactness.loading import BLOCK_TOKENS, Framework, load_runner
from order import RUNS_ALL

NUM_NEW_TOKENS = 24
ORIGINAL_CONTEXT_TOKENS = 64
PROMPT_LENGTHS = (1, BLOCK_TOKENS + 1, ORIGINAL_CONTEXT_TOKENS - 4, 5 * ORIGINAL_CONTEXT_TOKENS)
"""The third's output crosses the end of the original context; the last is beyond it throughout."""
TORCH_ONLY: tuple[YarnCheckpointName, ...] = ("yarn_gpt_oss", "yarn_qwen2_moe", "yarn_qwen3_moe")
PLACEMENTS: dict[YarnCheckpointName, list[tuple[Framework | None, Framework]]] = {
    "yarn_gpt_oss": [("torch", "torch")],
    "yarn_llama": [("torch", "mlx"), ("mlx", "torch")],
}
"""(prefill engine, decode engine), besides one engine of its own."""


def placements_of(name: YarnCheckpointName) -> list[tuple[Framework | None, Framework]]:
    """Return (prefill engine or None for local, decode engine).

    `make test` tries the hand-overs of a family that has some, and each other family on one of its engines.
    """
    alone: list[tuple[Framework | None, Framework]] = [(None, "torch"), (None, "mlx")]
    if name in TORCH_ONLY:
        alone = alone[:1]
    handed_over = PLACEMENTS.get(name, [])
    if RUNS_ALL:
        return [*alone, *handed_over]
    return handed_over or [alone[YARN_NAMES.index(name) % len(alone)]]


@pytest.mark.parametrize(
    ("name", "prefill_framework", "decode_framework"),
    [(name, *placement) for name in YARN_NAMES for placement in placements_of(name)],
)
def test_output_equals_transformers_beyond_the_original_context(
    name: YarnCheckpointName, prefill_framework: Framework | None, decode_framework: Framework
) -> None:
    """Prompts one after the other, then together and longer, half of each in the caches."""
    folder, random_ids = checkpoint(name), random.Random(5)
    prompts = [[random_ids.randrange(3, 512) for _ in range(length)] for length in PROMPT_LENGTHS]
    decode = start_engine(load_runner(decode_framework, folder), max_step_tokens=96)
    prefill = start_engine(load_runner(prefill_framework, folder), max_step_tokens=96) if prefill_framework else None
    try:
        alone = [
            generate(decode, f"alone-{index}", prompt, greedy(NUM_NEW_TOKENS), prefill=prefill).tokens()
            for index, prompt in enumerate(prompts)
        ]
        longer = [[*prompt, *output] for prompt, output in zip(prompts, alone, strict=True)]
        started = [
            generate(decode, f"batched-{index}", prompt, greedy(NUM_NEW_TOKENS), prefill=prefill)
            for index, prompt in enumerate(longer)
        ]
        batched = [generation.tokens() for generation in started]
    finally:
        for engine in (decode, prefill):
            if engine is not None:
                engine.close()

    for prompt, output in zip([*prompts, *longer], [*alone, *batched], strict=True):
        assert output == reference_generate(folder, prompt, NUM_NEW_TOKENS, guess=output)
