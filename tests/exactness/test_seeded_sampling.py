"""The same seed gives the same output on any engine, with any placement, whoever runs beside."""

from __future__ import annotations

import random

import pytest

from baton.engine.request import SamplingParams
from checkpoints import CheckpointName, checkpoint
from exactness.handover import generate, start_engine
from exactness.loading import load_runner

PROMPT_LENGTHS = (5, 17, 200)
NUM_NEW_TOKENS = 48
SAMPLINGS = (
    SamplingParams(temperature=1.0, seed=7, ignore_eos=True, max_tokens=NUM_NEW_TOKENS),
    SamplingParams(temperature=0.8, top_p=0.9, top_k=40, seed=-3, ignore_eos=True, max_tokens=NUM_NEW_TOKENS),
    SamplingParams(
        temperature=1.2,
        min_p=0.05,
        seed=2**62,
        repetition_penalty=1.2,
        frequency_penalty=0.5,
        presence_penalty=0.3,
        logit_bias={5: 2.0},
        ignore_eos=True,
        max_tokens=NUM_NEW_TOKENS,
    ),
)


@pytest.mark.parametrize("name", ["llama", "qwen3"])
def test_seeded_output_is_the_same_for_every_engine_and_placement(name: CheckpointName) -> None:
    """Local torch alone, local MLX in a batch, and both remote placements draw the same tokens."""
    draw = random.Random(3)
    prompts = [[draw.randrange(3, 512) for _ in range(length)] for length in PROMPT_LENGTHS]
    torch_engine = start_engine(load_runner("torch", checkpoint(name)))
    mlx_engine = start_engine(load_runner("mlx", checkpoint(name)))
    pairs = {
        "local mlx": (None, mlx_engine),
        "torch to mlx": (torch_engine, mlx_engine),
        "mlx to torch": (mlx_engine, torch_engine),
    }
    try:
        for number, params in enumerate(SAMPLINGS):
            alone = [
                generate(torch_engine, f"alone-{number}-{index}", prompt, params).tokens()
                for index, prompt in enumerate(prompts)
            ]
            for label, (prefill, decode) in pairs.items():
                together = [
                    generate(decode, f"{label}-{number}-{index}", prompt, params, prefill=prefill)
                    for index, prompt in enumerate(prompts)
                ]

                assert [generation.tokens() for generation in together] == alone, f"{label}, sampling {number}"
    finally:
        torch_engine.close()
        mlx_engine.close()


@pytest.mark.parametrize("num_delivered", [1, 15, 30])
def test_a_generation_that_moves_goes_on_as_if_it_had_stayed(num_delivered: int) -> None:
    """Output delivered before a move comes back as output: seeds, penalties and limits continue where they were."""
    prompt = [random.Random(9).randrange(3, 512) for _ in range(40)]
    torch_engine = start_engine(load_runner("torch", checkpoint("llama")))
    mlx_engine = start_engine(load_runner("mlx", checkpoint("llama")))
    try:
        for number, params in enumerate(SAMPLINGS):
            whole = generate(torch_engine, f"whole-{number}", prompt, params).tokens()

            for prefill in (None, torch_engine):
                moved = generate(
                    mlx_engine, f"moved-{number}", prompt, params, prefill=prefill, output=whole[:num_delivered]
                )

                assert moved.tokens(num_delivered) == whole[num_delivered:]
    finally:
        torch_engine.close()
        mlx_engine.close()
