"""Prompts of one launch share a pass of the mlx runner, each with the result that it has alone."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

pytest.importorskip("mlx.core")

from baton.engine.runners.base import LayerKv, Span
from baton.engine.runners.mlx import MlxRunner, load_mlx_runner
from baton.engine.runners.mlx.forward_pass.backbone import MlxBackbone
from checkpoints import CheckpointName, checkpoint, reference_logits

NUM_BLOCKS = 48
BLOCK_TOKENS = 16
PACKED_NAMES = ("llama", "llama3", "qwen2", "qwen3", "mistral", "mixtral", "qwen3_moe")


@pytest.fixture(params=PACKED_NAMES)
def folder(request: pytest.FixtureRequest) -> Path:
    """Return each checkpoint whose attention takes packed rows."""
    name: CheckpointName = request.param
    return checkpoint(name)


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return the tokens of each pass of a model."""
    counted: list[int] = []
    hidden = MlxBackbone.hidden

    def recorded(self: MlxBackbone, batch: Any, *arguments: Any, **options: Any) -> Any:
        counted.append(batch.token_ids.size)
        return hidden(self, batch, *arguments, **options)

    monkeypatch.setattr(MlxBackbone, "hidden", recorded)
    return counted


def prompt_of(num_tokens: int, seed: int) -> list[int]:
    """Return a random prompt."""
    random = Random(1000 * seed + num_tokens)
    return [random.randrange(3, 512) for _ in range(num_tokens)]


def loaded(folder: Path, *, is_kv_quantized: bool = False) -> MlxRunner:
    """Return a float32 runner."""
    return load_mlx_runner(folder, model_id="m", num_blocks=NUM_BLOCKS, is_kv_quantized=is_kv_quantized)


def test_packed_prompts_have_the_logits_of_the_reference(folder: Path, passes: list[int]) -> None:
    """Prompts, a later chunk of one, and one that reads the blocks that another writes: all in one pass."""
    runner, free = loaded(folder), Random(1).sample(range(NUM_BLOCKS), NUM_BLOCKS)
    first, begun, third = prompt_of(21, 1), prompt_of(70, 2), prompt_of(40, 3)
    tables = [[free.pop() for _ in range(5)] for _ in range(3)]
    runner.forward([Span(begun[:33], 0, tables[1], needs_logits=False)])
    sharing = third[:32] + prompt_of(9, 4)
    spans = [
        Span(first, 0, tables[0], needs_logits=True),
        Span(begun[33:], 33, tables[1], needs_logits=True, logits_from=60),
        Span(third, 0, tables[2], needs_logits=False),
        Span(sharing[32:], 32, [*tables[2][:2], free.pop()], needs_logits=True),
    ]
    passes.clear()

    rows = runner.forward(spans).rows()

    assert passes == [21 + 37 + 40 + 9]
    wanted = [reference_logits(folder, prompt).numpy() for prompt in (first, begun, sharing)]
    expected = np.concatenate([wanted[0][-1:], wanted[1][60:], wanted[2][-1:]])
    assert np.abs(rows - expected).max() <= 1e-4 * np.abs(expected).max()


def test_packed_prompts_hand_out_the_kv_that_they_have_alone(passes: list[int]) -> None:
    """Each sink gets its own span's K and V, layer by layer; blocks hold the same."""
    runner = loaded(checkpoint("llama"))
    prompts, tables = [prompt_of(19, 5), prompt_of(1, 6), prompt_of(30, 7)], [[3, 9], [4], [7, 1]]
    alone, packed = ([dict[int, LayerKv]() for _ in prompts] for _ in range(2))
    for taken, prompt, table in zip(alone, prompts, tables, strict=True):
        runner.forward([Span(prompt, 0, table, True, layer_sink=taken.__setitem__)])
    passes.clear()

    runner.forward(
        [
            Span(prompt, 0, table, True, layer_sink=taken.__setitem__)
            for taken, prompt, table in zip(packed, prompts, tables, strict=True)
        ]
    )

    assert passes == [50]
    for taken, other, prompt, table in zip(packed, alone, prompts, tables, strict=True):
        assert list(taken) == list(range(runner.info.layout.num_layers))
        for layer, kv in taken.items():
            for given, expected in zip(kv, other[layer], strict=True):
                assert np.allclose(as_floats(given), as_floats(expected), rtol=1e-4, atol=1e-5)
            assert bytes(kv.keys) == bytes(runner.read_kv(table, layer, 0, len(prompt)).keys)


def test_chunks_that_want_no_logits_are_packed_too(passes: list[int]) -> None:
    """Nothing is computed of their last layer; the next chunks read what they wrote."""
    runner = loaded(checkpoint("qwen3"), is_kv_quantized=True)
    prompts, tables = [prompt_of(35, 8), prompt_of(50, 9)], [[5, 2, 8], [0, 11, 6, 12]]
    expected = [
        runner.forward([Span(prompt, 0, table, True)]).rows() for prompt, table in zip(prompts, tables, strict=True)
    ]
    passes.clear()

    for start, end in ((0, 20), (20, None)):
        rows = runner.forward(
            [Span(prompt[start:end], start, table, end is None) for prompt, table in zip(prompts, tables, strict=True)]
        ).rows()

    assert passes == [40, 45]
    assert np.abs(rows - np.concatenate(expected)).max() <= 0.02 * np.abs(expected).max()


def test_families_with_their_own_attention_have_a_pass_for_each_prompt(passes: list[int]) -> None:
    """mlx-lm's modules take one sequence in a row."""
    runner = loaded(checkpoint("gemma3"))
    passes.clear()

    runner.forward([Span(prompt_of(9, 1), 0, [0], True), Span(prompt_of(12, 2), 0, [1], True)])

    assert passes == [9, 12]


def as_floats(kv: bytes | memoryview) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Return K or V as numbers."""
    return np.frombuffer(kv, dtype="<f4")
