"""With adapters too, greedy float32 output equals PEFT's, whoever runs beside and whatever is cached."""

from __future__ import annotations

import os

import pytest

from adapters import adapter_folder, differ, is_greedy, random_prompt
from baton.engine.engine import Engine
from checkpoints import CHECKPOINT_NAMES, FAMILY_NAMES, CheckpointName, checkpoint
from exactness.handover import generate, greedy, start_engine
from exactness.loading import Framework, load_runner

NUM_NEW_TOKENS = 10
PROMPT_LENGTHS = (1, 60)
ADAPTERS = ("", "one", "two")
LOCAL_TORCH, LOCAL_MLX, TO_MLX, TO_TORCH = (None, "torch"), (None, "mlx"), ("torch", "mlx"), ("mlx", "torch")
Case = tuple[CheckpointName, tuple[Framework | None, Framework]]
"""Family, and (prefill engine or None for local, decode engine)."""

SAMPLE: tuple[Case, ...] = (
    ("llama", LOCAL_TORCH),
    ("llama", LOCAL_MLX),
    ("llama", TO_MLX),
    ("phi3", TO_TORCH),
    ("qwen3", TO_TORCH),
    ("gemma3", TO_MLX),
    ("mistral", TO_TORCH),
    ("mixtral", TO_MLX),
)
"""What runs by default; BATON_LORA_FAMILIES=all runs everything."""
EVERYTHING: tuple[Case, ...] = (
    *(
        (family, placement)
        for family in (*CHECKPOINT_NAMES, *FAMILY_NAMES)
        if family != "gpt_oss"
        for placement in (LOCAL_TORCH, LOCAL_MLX, TO_MLX, TO_TORCH)
    ),
    ("gpt_oss", LOCAL_TORCH),
    ("gpt_oss", ("torch", "torch")),
)
CASES = EVERYTHING if os.environ.get("BATON_LORA_FAMILIES") == "all" else SAMPLE


def run_all(decode: Engine, prefill: Engine | None, label: str) -> dict[tuple[str, int], list[int]]:
    """Return the outputs of equal prompts with every adapter, all at once, by adapter and length."""
    started = {
        (adapter, length): generate(
            decode,
            f"{label}-{adapter}-{length}",
            random_prompt(length),
            greedy(NUM_NEW_TOKENS),
            prefill=prefill,
            adapter=adapter,
        )
        for length in PROMPT_LENGTHS
        for adapter in ADAPTERS
    }
    return {key: generation.tokens() for key, generation in started.items()}


@pytest.mark.parametrize(
    ("family", "placement"), CASES, ids=[f"{family}-{prefill or 'local'}-{to}" for family, (prefill, to) in CASES]
)
def test_output_equals_peft(family: CheckpointName, placement: tuple[Framework | None, Framework]) -> None:
    """Two adapters and none side by side, in chunks, with equal prompts; first computed, then from what is cached."""
    folders = {"one": adapter_folder(family, 1), "two": adapter_folder(family, 2)}
    prefill_framework, decode_framework = placement
    decode = start_engine(load_runner(decode_framework, checkpoint(family), adapters=folders), max_step_tokens=48)
    prefill = None
    if prefill_framework:
        prefill = start_engine(load_runner(prefill_framework, checkpoint(family), adapters=folders), max_step_tokens=48)
    try:
        cold, warm = run_all(decode, prefill, "cold"), run_all(decode, prefill, "warm")
    finally:
        for engine in (decode, prefill):
            if engine is not None:
                engine.close()

    for (adapter, length), output in cold.items():
        assert is_greedy(family, folders.get(adapter), random_prompt(length), output), f"{adapter}, {length} tokens"
    assert differ([cold[adapter, length] for adapter in ADAPTERS for length in PROMPT_LENGTHS[1:]])
    assert warm == cold
