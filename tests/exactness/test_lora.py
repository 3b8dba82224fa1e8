"""With adapters too, greedy float32 output equals PEFT's, whoever runs beside and whatever is cached."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import pytest

from adapters import adapter_folder, differ, is_greedy, random_prompt
from baton.engine.engine import Engine
from baton.engine.kv_cache.pool_size import PoolBounds
from baton.engine.runners.base import Span
from baton.engine.runners.torch import load_torch_runner
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


def check_all(family: CheckpointName, outputs: Mapping[tuple[str, int], list[int]]) -> None:
    """Check that every output is PEFT's, and that adapters make a difference."""
    folders = {"one": adapter_folder(family, 1), "two": adapter_folder(family, 2)}
    for (adapter, length), output in outputs.items():
        assert is_greedy(family, folders.get(adapter), random_prompt(length), output), f"{adapter}, {length} tokens"
    assert differ([outputs[adapter, PROMPT_LENGTHS[-1]] for adapter in ADAPTERS])


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

    check_all(family, cold)
    assert warm == cold


def test_output_equals_peft_where_decode_runs_over_static_buffers() -> None:
    """CUDA's way of decoding, on the CPU: passes with an adapter are packed, others follow them in their rows."""
    folders = {"one": adapter_folder("llama", 1), "two": adapter_folder("llama", 2)}
    options: dict[str, Any] = {
        "num_blocks": 64,
        "bounds": PoolBounds(max_batch_size=8),
        "uses_decode_buffers": True,
        "adapters": folders,
    }
    engine = start_engine(load_torch_runner(checkpoint("llama"), model_id="tiny", **options), max_step_tokens=48)
    try:
        outputs = run_all(engine, None, "static")
        longer = generate(engine, "longer", random_prompt(20), greedy(40))
        shorter = generate(engine, "shorter", random_prompt(21), greedy(9), adapter="one")
        outputs |= {("one", 21): shorter.tokens(), ("", 20): longer.tokens()}
    finally:
        engine.close()

    check_all("llama", outputs)


def test_weights_in_8_bits_take_adapters_as_they_are() -> None:
    """Logits differ from those of unrounded weights by far less than the adapter makes of them."""
    folders, prompt = {"one": adapter_folder("llama", 1)}, random_prompt(40)
    options: dict[str, Any] = {"model_id": "tiny", "num_blocks": 8, "adapters": folders}
    rounded, exact = (
        load_torch_runner(checkpoint("llama"), weight_dtype=weight_dtype, **options)
        for weight_dtype in ("int8", "auto")
    )
    spans = [Span(prompt, 0, range(3), needs_logits=True, adapter=adapter) for adapter in ("one", "")]
    rounded_adapted, exact_adapted, plain = (
        runner.forward([span]).rows()[0] for runner, span in ((rounded, spans[0]), (exact, spans[0]), (exact, spans[1]))
    )

    assert abs(rounded_adapted - exact_adapted).max() < 0.2 * abs(plain - exact_adapted).max()
