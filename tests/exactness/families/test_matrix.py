"""Families as hubs lay them out, by format of weights, placement and condition: tokens and logits are transformers'.

`make test` runs a sample; `make matrix` every cell, and writes `bench/results/families.md`.
"""

from __future__ import annotations

import random
import subprocess
from collections.abc import Iterator, Sequence
from itertools import count, product
from pathlib import Path
from typing import Any, Literal, NamedTuple

import pytest

from baton.engine.engine import Engine
from baton.engine.runners.base import Span
from checkpoints import (
    HUB_NAMES,
    HYBRID_NAMES,
    VOCABULARY_SIZE,
    HubCheckpointName,
    checkpoint,
    reference_generate,
    reference_logits,
)
from exactness.handover import Generation, generate, greedy, held, start_engine
from exactness.loading import BLOCK_TOKENS, Framework, load_runner
from order import RUNS_ALL
from packed_checkpoints import Affine, pair

Format = Literal["plain", "mlx4", "mlx8", "fp8", "fp8_tensor"]
Condition = Literal["alone", "chunked", "prefix", "ragged", "killed", "preempted", "migrated"]
PLACES: dict[str, tuple[Framework | None, Framework]] = {
    "torch": (None, "torch"),
    "mlx": (None, "mlx"),
    "torch-to-mlx": ("torch", "mlx"),
    "mlx-to-torch": ("mlx", "torch"),
}
"""(prefill engine or None for local, decode engine)."""
KINDS: dict[Format, Affine | str] = {
    "mlx4": Affine(4, is_mixed=True),
    "mlx8": Affine(8),
    "fp8": "fp8",
    "fp8_tensor": "fp8_tensor",
}
CONDITIONS: tuple[Condition, ...] = ("alone", "chunked", "prefix", "ragged", "killed", "preempted", "migrated")
NUM_NEW_TOKENS = 64 if RUNS_ALL else 40
MAX_STEP_TOKENS = 96
NUM_BLOCKS = 24
"""They hold the longest prompt with its output, and not all that are to be preempted."""


class Setting(NamedTuple):
    """Whose weights, in what format, and which engines compute."""

    family: HubCheckpointName
    format: Format
    place: str

    def __str__(self) -> str:
        return "-".join(self)

    def folders(self) -> tuple[Path, Path]:
        """Return the folder that is served, and the same weights as transformers takes them."""
        if self.format == "plain":
            return checkpoint(self.family), checkpoint(self.family)
        return pair(self.family, KINDS[self.format])


SETTINGS = [
    Setting(family, kind, place)
    for family, kind, place in product(HUB_NAMES, ("plain", *KINDS), PLACES)
    if kind not in ("fp8", "fp8_tensor") or (place == "torch" and family not in HYBRID_NAMES)
    if kind != "fp8_tensor" or family == "ministral3"
]
CELLS = [
    (setting, condition)
    for setting, condition in product(SETTINGS, CONDITIONS)
    if condition != "killed" or PLACES[setting.place][0]
]
SAMPLE: list[tuple[Setting, Condition]] = [
    (Setting("minimax_m2", "mlx4", "torch-to-mlx"), "ragged"),
    (Setting("minimax_m2", "fp8", "torch"), "prefix"),
    (Setting("gemma3_vl", "mlx8", "mlx-to-torch"), "killed"),
    (Setting("mistral3", "plain", "mlx"), "preempted"),
    (Setting("ministral3", "plain", "torch-to-mlx"), "chunked"),
    (Setting("qwen3_vl", "mlx4", "mlx-to-torch"), "migrated"),
    (Setting("qwen3_vl", "plain", "torch"), "alone"),
    (Setting("qwen3_next", "plain", "torch"), "ragged"),
    (Setting("qwen3_next", "plain", "mlx"), "chunked"),
    (Setting("qwen3_next", "plain", "torch-to-mlx"), "killed"),
    (Setting("qwen3_next", "mlx4", "mlx-to-torch"), "prefix"),
    (Setting("deepseek_v3", "plain", "torch-to-mlx"), "ragged"),
    (Setting("deepseek_v3", "mlx4", "mlx-to-torch"), "killed"),
    (Setting("glm4_moe_lite", "mlx4", "torch-to-mlx"), "preempted"),
    (Setting("gemma4_e2b", "mlx4", "torch-to-mlx"), "chunked"),
    (Setting("gemma4_e2b", "plain", "mlx-to-torch"), "ragged"),
    (Setting("gemma4_31b", "plain", "mlx"), "prefix"),
    (Setting("gemma4_26b", "mlx4", "torch"), "ragged"),
    (Setting("qwen3_5", "plain", "mlx-to-torch"), "migrated"),
    (Setting("qwen3_5_moe", "mlx8", "torch"), "preempted"),
    (Setting("lfm2", "plain", "torch-to-mlx"), "alone"),
    (Setting("nemotron_h", "mlx4", "torch-to-mlx"), "killed"),
    (Setting("nemotron_h", "plain", "mlx-to-torch"), "prefix"),
    (Setting("nemotron_h", "plain", "torch"), "ragged"),
    (Setting("falcon_h1", "mlx4", "mlx-to-torch"), "migrated"),
    (Setting("falcon_h1", "plain", "torch-to-mlx"), "ragged"),
    (Setting("falcon_h1", "plain", "mlx"), "preempted"),
]
"""Each family, format, place and condition at least once."""


_RESULTS = Path(__file__).parents[3] / "bench" / "results" / "families.md"
_HEAD = (
    """# Families by format, placement and condition

Written by `make matrix` (`tests/exactness/families/test_matrix.py`): tiny random checkpoints as hubs lay them out,
against transformers in float32. "=": 64 greedy tokens are equal; logits: the largest difference at 90 positions over
the largest; commit: of which all cells of the row tell.
"""
    "\n| family, format, place | "
    + " | ".join((*CONDITIONS, "logits", "commit"))
    + " |\n"
    + "|---" * (len(CONDITIONS) + 3)
    + "|\n"
)


@pytest.fixture(scope="module")
def kept() -> Iterator[dict[str, dict[str, str]]]:
    """Keep what cells have shown, by setting and condition."""
    shown: dict[str, dict[str, str]] = {}
    yield shown
    if not RUNS_ALL:
        return
    rows = {
        line.split(" | ")[0].removeprefix("| "): line for line in _RESULTS.read_text().splitlines() if " | " in line
    }
    columns = (*CONDITIONS, "logits", "commit")
    commit = subprocess.check_output(("git", "rev-parse", "--short=8", "HEAD"), text=True).strip()
    for name, cells in shown.items():
        before = [cell.strip() for cell in rows.get(name, "").split("|")[2:-1]]
        if before[-1:] != [commit]:
            before = [""] * len(columns)
        told = [(cells | {"commit": commit}).get(column, cell) for column, cell in zip(columns, before, strict=True)]
        rows[name] = f"| {name} | {' | '.join(told)} |"
    names = [str(setting) for setting in SETTINGS]
    _RESULTS.write_text(_HEAD + "".join(f"{rows[name]}\n" for name in names if name in rows))


class Running(NamedTuple):
    """A setting whose engines run."""

    setting: Setting
    prefill: Engine | None
    decode: Engine


@pytest.fixture(scope="module")
def running(request: pytest.FixtureRequest) -> Iterator[Running]:
    """Start the engines of a setting."""
    setting: Setting = request.param
    folder, _ = setting.folders()
    started = [
        start_engine(load_runner(framework, folder, num_blocks=NUM_BLOCKS), max_step_tokens=MAX_STEP_TOKENS)
        for framework in PLACES[setting.place]
        if framework
    ]
    yield Running(setting, started[0] if len(started) > 1 else None, started[-1])
    for engine in started:
        engine.close()


@pytest.mark.parametrize(
    ("running", "condition"), CELLS if RUNS_ALL else SAMPLE, ids=str, indirect=["running"], scope="module"
)
def test_output_equals_transformers(running: Running, condition: Condition, kept: dict[str, dict[str, str]]) -> None:
    """Greedily, in float32, for as many tokens as four blocks have, or in the sample two and a half."""
    _, unpacked = running.setting.folders()

    def check(generation: Generation, prompt: list[int], before: Sequence[int] = ()) -> list[int]:
        output = generation.tokens(len(before))
        expected = reference_generate(unpacked, prompt, NUM_NEW_TOKENS, guess=[*before, *output])
        assert output == expected[len(before) :]
        return output

    if condition == "prefix":
        prompt = _prompt(70)
        longer = [*prompt, *check(_start(running, prompt), prompt)]
        again = _start(running, longer)
        check(again, longer)
        assert again.ended.prompt_work.num_cached_tokens >= len(prompt) // BLOCK_TOKENS * BLOCK_TOKENS
    elif condition == "ragged":
        prompts = [_prompt(length) for length in (1, BLOCK_TOKENS + 1, 75)]
        for generation, prompt in zip([_start(running, prompt) for prompt in prompts], prompts, strict=True):
            check(generation, prompt)
    elif condition == "preempted":
        prompts = [_prompt(length) for length in (50, 61, 33, 48, 90, 16)]
        with held(running.decode):
            generations = [_start(running, prompt) for prompt in prompts]
        for generation, prompt in zip(generations, prompts, strict=True):
            check(generation, prompt)
        assert running.prefill or sum(generation.ended.num_preemptions for generation in generations) > 0
    elif condition == "migrated":
        prompt = _prompt(40)
        before = reference_generate(unpacked, prompt, 20)
        check(_start(running, prompt, output=before), prompt, before)
    else:
        prompt = _prompt({"alone": 43, "chunked": 230, "killed": 200}[condition])
        check(_start(running, prompt, num_frames=7 if condition == "killed" else None), prompt)
    kept.setdefault(str(running.setting), {})[condition] = "="


@pytest.mark.parametrize(
    "setting",
    [
        Setting(family, kind, place)
        for family, kind, place in (SETTINGS if RUNS_ALL else [cell[0] for cell in SAMPLE])
        if PLACES[place][0] is None
    ],
    ids=str,
)
def test_logits_equal_those_of_transformers(setting: Setting, kept: dict[str, dict[str, str]]) -> None:
    """At every position, to 1e-4 of the largest."""
    folder, unpacked = setting.folders()
    prompt = _prompt(90)
    expected = reference_logits(unpacked, prompt).numpy()

    rows = (
        load_runner(PLACES[setting.place][1], folder).forward([Span(prompt, 0, range(6), True, logits_from=0)]).rows()
    )

    share = abs(rows - expected).max() / abs(expected).max()
    assert share <= 1e-4
    kept.setdefault(str(setting), {})["logits"] = f"{share:.0e}"


_numbers = count()


def _start(running: Running, prompt: list[int], **options: Any) -> Generation:
    label = f"{next(_numbers)}"
    return generate(running.decode, label, prompt, greedy(NUM_NEW_TOKENS), prefill=running.prefill, **options)


def _prompt(length: int) -> list[int]:
    return random.Random(7000 + length).choices(range(4, VOCABULARY_SIZE), k=length)
