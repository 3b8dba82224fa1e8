"""One folder of packed weights on both engines: greedy float32 output equals transformers' on the weights unpacked."""

from __future__ import annotations

import random
from typing import NamedTuple

import pytest

from baton.engine.runners.base import Span
from checkpoints import VOCABULARY_SIZE, CheckpointName, reference_generate, reference_logits
from exactness.handover import generate, greedy, start_engine
from exactness.loading import BLOCK_TOKENS, Framework, load_runner
from order import RUNS_ALL
from packed_checkpoints import HUB_FORMATS, MICRO_MODES, Affine, pair

PLACEMENTS: tuple[tuple[Framework | None, Framework], ...] = (
    (None, "torch"),
    (None, "mlx"),
    ("torch", "mlx"),
    ("mlx", "torch"),
)
"""(prefill engine or None for local, decode engine)."""
PROMPT_LENGTHS = (1, BLOCK_TOKENS + 1, 300)
"""Of prompts that are generated together; the longest is computed in chunks."""
MAX_STEP_TOKENS = 128
NUM_NEW_TOKENS = 64 if RUNS_ALL else 2 * BLOCK_TOKENS + 4


class Case(NamedTuple):
    """A cell of the table."""

    family: CheckpointName
    kind: Affine | str
    placement: int

    def __str__(self) -> str:
        prefill, decode = PLACEMENTS[self.placement]
        kind = self.kind
        if isinstance(kind, Affine):
            kind = f"{kind.bits}bit{'mixed' if kind.is_mixed else ''}-g{kind.group_size}"
        return f"{self.family}-{kind}-{prefill or 'local'}-to-{decode}"


_ALL = [
    *(
        Case("wide_llama", Affine(bits, size), place)
        for bits in (2, 3, 4, 5, 6, 8)
        for size in (32, 64, 128)
        for place in range(4)
    ),
    *(Case("wide_qwen3", Affine(4, 64, is_mixed=True), place) for place in range(4)),
    *(
        Case(family, Affine(4, is_mixed=True), place)
        for family in (
            "llama",
            "llama3",
            "qwen2",
            "mistral",
            "mixtral",
            "qwen2_moe",
            "qwen3_moe",
            "phi3",
            "smollm3",
            "gemma2",
            "gemma3",
            "glm4_moe",
            "minimax_m2",
        )
        for place in range(4)
    ),
]
_ALL += [Case("wide_llama", mode, place) for mode in MICRO_MODES for place in range(4)]
_ALL += [Case(family, method, 0) for family in ("wide_llama", "wide_qwen3") for method in HUB_FORMATS]
_ALL += [Case("gpt_oss", kind, place) for kind in ("openai", "openai-q8") for place in range(4)]
_ALL += [Case("yarn_gpt_oss", "openai", place) for place in range(4)]
_SAMPLE = [
    Case("gpt_oss", "openai-q8", 2),
    Case("gpt_oss", "openai", 3),
    Case("wide_llama", "nvfp4", 2),
    Case("wide_llama", "fp8", 0),
    Case("wide_qwen3", Affine(4, 64, is_mixed=True), 2),
    Case("wide_llama", Affine(4, 64), 3),
    Case("wide_llama", Affine(3, 32), 0),
    Case("wide_llama", Affine(8, 128), 2),
    Case("qwen3_moe", Affine(4, is_mixed=True), 3),
]
CASES = _ALL if RUNS_ALL else _SAMPLE


def _prompt(length: int) -> list[int]:
    return random.Random(9000 + length).choices(range(3, VOCABULARY_SIZE), k=length)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_output_of_packed_weights_equals_transformers_on_the_same_unpacked(case: Case) -> None:
    """Ragged prompts together, the longest in chunks, then again over what is cached on both sides."""
    packed, unpacked = pair(case.family, case.kind)
    prefill_framework, decode_framework = PLACEMENTS[case.placement]
    decode = start_engine(load_runner(decode_framework, packed), max_step_tokens=MAX_STEP_TOKENS)
    prefill = (
        start_engine(load_runner(prefill_framework, packed), max_step_tokens=MAX_STEP_TOKENS)
        if prefill_framework
        else None
    )
    try:
        for turn in range(2):
            started = [
                generate(decode, f"{turn}-{length}", _prompt(length), greedy(NUM_NEW_TOKENS), prefill=prefill)
                for length in PROMPT_LENGTHS
            ]
            for length, generation in zip(PROMPT_LENGTHS, started, strict=True):
                output = generation.tokens()

                expected = reference_generate(unpacked, _prompt(length), NUM_NEW_TOKENS, guess=output)
                assert output == expected, f"prompt of {length} tokens, turn {turn}"
    finally:
        for engine in (decode, prefill):
            if engine is not None:
                engine.close()


@pytest.mark.parametrize("case", [case for case in CASES if case.placement in (0, 1)], ids=str)
def test_logits_of_packed_weights_are_those_of_transformers(case: Case) -> None:
    """Every position, to 1e-4 of the largest."""
    packed, unpacked = pair(case.family, case.kind)
    prompt = _prompt(90)
    expected = reference_logits(unpacked, prompt).numpy()
    runner = load_runner(PLACEMENTS[case.placement][1], packed)

    rows = runner.forward([Span(prompt, 0, range(6), True, logits_from=0)]).rows()

    assert abs(rows - expected).max() <= 1e-4 * abs(expected).max()
