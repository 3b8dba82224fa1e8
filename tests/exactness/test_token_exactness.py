"""The heart of the contract: greedy float32 output equals transformers' for any placement, cache hit and neighbour."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Literal, NamedTuple

import pytest

from baton.engine.engine import Engine
from checkpoints import CHECKPOINT_NAMES, CheckpointName, checkpoint, reference_generate
from exactness.handover import generate, greedy, start_engine
from exactness.loading import BLOCK_TOKENS, Framework, load_runner
from order import RUNS_ALL

PROMPT_LENGTHS = (1, 2, BLOCK_TOKENS - 1, BLOCK_TOKENS, BLOCK_TOKENS + 1, 700)
NUM_NEW_TOKENS = 64 if RUNS_ALL else 2 * BLOCK_TOKENS + 4
"""Of prompts that are generated together; the sample passes the ends of two blocks."""
NUM_NEW_ALONE = BLOCK_TOKENS + 4
"""Of prompts that are generated one after the other, which takes a pass for each token: past the end of a block."""

OTHER_SEEDS = {
    (1, 5): 8,
    (15, 6): 8,
    (16, 2): 8,
    (16, 5): 9,
    (16, 6): 10,
    (17, 6): 8,
    (700, 0): 9,
    (700, 3): 10,
}
"""Seed of a prompt by length and case, where after that of the case a family's best two tokens come within 0.0003 of
each other: two orders of sums may choose either."""

Hit = Literal["no", "decode", "prefill", "both"]
PLACEMENTS: tuple[tuple[Framework | None, Framework], ...] = (
    (None, "torch"),
    (None, "mlx"),
    ("torch", "torch"),
    ("torch", "mlx"),
    ("mlx", "torch"),
)
"""(prefill engine or None for local, decode engine)."""
CASES = [
    (family, number)
    for index, family in enumerate(CHECKPOINT_NAMES)
    for number in range(len(PLACEMENTS))
    if RUNS_ALL or number in ((0, 3, 4) if index % 2 else (1, 2, 4))
]
"""Family and number of the placement; in the sample each family meets every engine on either side, or none."""


class Placement(NamedTuple):
    """Running engines."""

    number: int
    """Of PLACEMENTS."""
    prefill: Engine | None
    decode: Engine

    def rounds(self, family: CheckpointName) -> list[tuple[int, Hit, bool]]:
        """Return (case, hit, whether the prompts are generated together): every hit, in one of both ways.

        Over the families a placement has every hit in both ways, and over the placements a family has. `make matrix`
        runs both ways of all.
        """
        hits: tuple[Hit, ...] = ("no", "decode", "prefill", "both") if self.prefill else ("no", "decode")
        shift = self.number + CHECKPOINT_NAMES.index(family) // 2
        return [
            (2 * number + is_batched, hit, is_batched)
            for number, hit in enumerate(hits)
            for is_batched in (False, True)
            if RUNS_ALL or (number + shift) % 2 == is_batched
        ]


def _prompts(case: int) -> list[list[int]]:
    return [_prompt(length, OTHER_SEEDS.get((length, case), case)) for length in PROMPT_LENGTHS]


def _prompt(length: int, seed: int) -> list[int]:
    random_ids = random.Random(1000 * seed + length)
    return [random_ids.randrange(3, 512) for _ in range(length)]


def _warm(engine: Engine, prompts: list[list[int]], label: str) -> None:
    """Fill the prefix cache with about half of each prompt."""
    for index, prompt in enumerate(prompts):
        half = prompt[: len(prompt) // 2 + 1]
        generate(engine, f"warm-{label}-{index}", half, greedy(1)).tokens()


def _id_of(case: tuple[CheckpointName, int]) -> str:
    prefill, decode = PLACEMENTS[case[1]]
    return f"{prefill or 'local'}-to-{decode}-{case[0]}"


@pytest.fixture(params=CASES, ids=_id_of)
def case(request: pytest.FixtureRequest) -> tuple[CheckpointName, int]:
    """Return a family and the number of a placement."""
    found: tuple[CheckpointName, int] = request.param
    return found


@pytest.fixture
def family(case: tuple[CheckpointName, int]) -> CheckpointName:
    """Return the family."""
    return case[0]


@pytest.fixture
def placement(case: tuple[CheckpointName, int]) -> Iterator[Placement]:
    """Return running engines."""
    family, number = case
    prefill_framework, decode_framework = PLACEMENTS[number]
    folder = checkpoint(family)
    decode = start_engine(load_runner(decode_framework, folder))
    prefill = start_engine(load_runner(prefill_framework, folder)) if prefill_framework else None
    yield Placement(number, prefill, decode)
    for engine in (decode, prefill):
        if engine is not None:
            engine.close()


def test_output_equals_transformers_whatever_is_cached_and_whoever_runs_beside(
    placement: Placement, family: CheckpointName
) -> None:
    """All prompts, alone and together, with hits on neither side, either and both, give the reference's tokens."""
    _, prefill, decode = placement
    for case, hit, is_batched in placement.rounds(family):
        label, prompts = f"{hit}-{is_batched}", _prompts(case)
        if hit in ("decode", "both"):
            _warm(decode, prompts, label)
        if hit in ("prefill", "both") and prefill:
            _warm(prefill, prompts, label)

        outputs = _run(decode, prefill, prompts, label, is_batched=is_batched)

        for prompt, output in zip(prompts, outputs, strict=True):
            num_tokens = _num_new_tokens(is_batched=is_batched)
            expected = reference_generate(checkpoint(family), prompt, num_tokens, guess=output)
            assert output == expected, f"prompt of {len(prompt)} tokens, hit {hit}, batched {is_batched}"


def _num_new_tokens(*, is_batched: bool) -> int:
    return NUM_NEW_TOKENS if is_batched else NUM_NEW_ALONE


def _run(
    decode: Engine, prefill: Engine | None, prompts: list[list[int]], label: str, *, is_batched: bool
) -> list[list[int]]:
    started, outputs = [], []
    for index, prompt in enumerate(prompts):
        generation = generate(
            decode,
            f"{label}-{index}",
            prompt,
            greedy(_num_new_tokens(is_batched=is_batched)),
            prefill=prefill,
            layers_per_frame=index % 3 + 1,
        )
        if is_batched:
            started.append(generation)
        else:
            outputs.append(generation.tokens())
    return outputs + [generation.tokens() for generation in started]
