"""Every other family gives transformers' tokens too, on both engines and handed from one to the other."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from baton.engine.engine import Engine
from baton.errors import ConfigurationError
from checkpoints import FAMILY_NAMES, FamilyCheckpointName, checkpoint, reference_generate
from exactness.handover import generate, greedy, start_engine
from exactness.loading import BLOCK_TOKENS, Framework, load_runner
from order import RUNS_ALL

NUM_NEW_TOKENS = 24
PROMPT_LENGTHS = (1, BLOCK_TOKENS + 1, 150)
TORCH_ONLY: tuple[FamilyCheckpointName, ...] = ("gpt_oss",)


def placements_of(family: FamilyCheckpointName) -> tuple[tuple[Framework | None, Framework], ...]:
    """Return (prefill engine or None for local, decode engine); `make test` tries two of the four."""
    if family in TORCH_ONLY:
        return ((None, "torch"), ("torch", "torch"))
    ways: tuple[tuple[Framework | None, Framework], ...] = (
        (None, "torch"),
        ("torch", "mlx"),
        (None, "mlx"),
        ("mlx", "torch"),
    )
    if RUNS_ALL:
        return ways
    return ways[:2] if FAMILY_NAMES.index(family) % 2 else ways[2:]


def run_all(decode: Engine, prefill: Engine | None, prompts: list[list[int]], label: str) -> list[list[int]]:
    """Return the outputs of prompts that run together."""
    started = [
        generate(decode, f"{label}-{index}", prompt, greedy(NUM_NEW_TOKENS), prefill=prefill, layers_per_frame=2)
        for index, prompt in enumerate(prompts)
    ]
    return [generation.tokens() for generation in started]


@pytest.mark.parametrize(
    ("family", "prefill_framework", "decode_framework"),
    [(family, *placement) for family in FAMILY_NAMES for placement in placements_of(family)],
)
def test_output_equals_transformers(
    family: FamilyCheckpointName, prefill_framework: Framework | None, decode_framework: Framework
) -> None:
    """Prompts in one batch, first computed throughout and then from what half of them left in the caches."""
    folder, random_ids = checkpoint(family), random.Random(5)
    prompts = [[random_ids.randrange(3, 512) for _ in range(length)] for length in PROMPT_LENGTHS]
    decode = start_engine(load_runner(decode_framework, folder), max_step_tokens=96)
    prefill = start_engine(load_runner(prefill_framework, folder), max_step_tokens=96) if prefill_framework else None
    try:
        outputs = run_all(decode, prefill, prompts, "cold")
        longer = [[*prompt, *output] for prompt, output in zip(prompts, outputs, strict=True)]
        outputs_of_longer = run_all(decode, prefill, longer, "warm")
    finally:
        for engine in (decode, prefill):
            if engine is not None:
                engine.close()

    for prompt, output in zip([*prompts, *longer], [*outputs, *outputs_of_longer], strict=True):
        assert output == reference_generate(folder, prompt, NUM_NEW_TOKENS, guess=output)


def test_a_family_of_one_engine_is_refused_by_the_other_with_the_reason() -> None:
    """The message names the engine that has it."""
    with pytest.raises(ConfigurationError, match="unquantised 'gpt_oss' is served by the torch engine alone"):
        load_runner("mlx", checkpoint("gpt_oss"))


def test_quantised_weights_are_refused_by_the_torch_engine(tmp_path: Path) -> None:
    """Weights that only transformers' plug-ins could read are refused before anything is loaded."""
    for file in checkpoint("gpt_oss").iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    config = (tmp_path / "config.json").read_text().rstrip().removesuffix("}")
    (tmp_path / "config.json").write_text(config + ', "quantization_config": {"quant_method": "bitsandbytes"}}')

    with pytest.raises(ConfigurationError, match=r"quantization_config\.quant_method: .* got 'bitsandbytes'"):
        load_runner("torch", tmp_path)
