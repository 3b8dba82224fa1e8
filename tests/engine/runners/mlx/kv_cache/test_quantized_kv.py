"""K and V that the mlx runner keeps in 8 bits."""

from __future__ import annotations

import numpy as np
import pytest

from baton.engine.runners.base import LayerKv, Span
from baton.errors import ConfigurationError
from checkpoints import CheckpointName, checkpoint

mx = pytest.importorskip("mlx.core")

from baton.engine.runners.mlx import MlxRunner, load_mlx_runner  # noqa: E402 (needs mlx)

TABLES = ([3, 4, 5, 6, 7], [20, 11, 31, 1, 2])
PROMPTS = ([7, 8, 9, 300, 12] * 6, [40, 3, 77] * 5)


def runner_of(name: CheckpointName, *, is_kv_quantized: bool) -> MlxRunner:
    """Return a float32 runner of its own."""
    return load_mlx_runner(checkpoint(name), model_id="tiny", num_blocks=64, is_kv_quantized=is_kv_quantized)


def decoded_rows(runner: MlxRunner, num_steps: int = 12) -> np.ndarray:
    """Return the logits of fed tokens, two sequences together after prompts in two chunks each."""
    for prompt, table in zip(PROMPTS, TABLES, strict=True):
        runner.forward([Span(prompt[:10], 0, table, False)])
        runner.forward([Span(prompt[10:], 10, table, False)])
    steps = [
        [Span([5 + number], len(prompt) + number, table, True) for prompt, table in zip(PROMPTS, TABLES, strict=True)]
        for number in range(num_steps)
    ]
    return np.concatenate([runner.forward(spans).rows() for spans in steps])


@pytest.mark.parametrize("name", ["qwen3", "gemma3"])
def test_logits_move_by_a_few_per_cent(name: CheckpointName) -> None:
    """Over chunks, rows of a batch and sliding windows, the mean error is below 0.06 of the logits' spread."""
    plain = decoded_rows(runner_of(name, is_kv_quantized=False))

    rows = decoded_rows(runner_of(name, is_kv_quantized=True))

    assert 0 < np.abs(rows - plain).mean() <= 0.06 * plain.std()


@pytest.mark.parametrize("name", ["qwen3", "gemma3"])
def test_attention_reads_what_was_kept(name: CheckpointName) -> None:
    """A node with plain K and V, given those of this one, has its logits, but for the newest position."""
    quantized, plain = (runner_of(name, is_kv_quantized=choice) for choice in (True, False))
    for prompt, table in zip(PROMPTS, TABLES, strict=True):
        quantized.forward([Span(prompt, 0, table, False)])
        for layer in range(plain.info.layout.num_layers):
            plain.write_kv(table, layer, 0, len(prompt), quantized.read_kv(table, layer, 0, len(prompt)))
    spans = [Span([5], len(prompt), table, True) for prompt, table in zip(PROMPTS, TABLES, strict=True)]

    rows, expected = quantized.forward(spans).rows(), plain.forward(spans).rows()

    assert np.abs(rows - expected).max() <= 0.01 * np.abs(expected).max()


def test_what_arrives_is_quantized_and_what_leaves_is_not() -> None:
    """K and V of the layout's dtype go in and come out, each within half a step of its group's scale."""
    runner = runner_of("qwen3", is_kv_quantized=True)
    spec = runner.info.layout.layers[0]
    sent = np.random.default_rng(2).standard_normal((spec.num_kv_heads, 20, spec.key_head_dim)).astype(np.float32)

    runner.write_kv(TABLES[1], 1, 3, 20, LayerKv(sent.tobytes(), (2 * sent).tobytes()))
    keys, values = (np.frombuffer(part, "<f4").reshape(sent.shape) for part in runner.read_kv(TABLES[1], 1, 3, 20))

    step = (sent.max(axis=-1) - sent.min(axis=-1)).max() / 255
    assert 0 < np.abs(keys - sent).max() <= step
    assert np.abs(values - 2 * sent).max() <= 2 * step


def test_the_layout_is_the_same() -> None:
    """Nodes that keep K and V otherwise exchange them all the same."""
    layouts = [runner_of("qwen3", is_kv_quantized=choice).info.layout for choice in (False, True)]

    assert layouts[0] == layouts[1]


def test_memory_is_a_third() -> None:
    """An element takes a byte, and a group of at least 32 two numbers of 4 bytes."""
    plain, quantized = (
        sum(array.nbytes for array in runner_of("qwen3", is_kv_quantized=choice)._pools[0].arrays)
        for choice in (False, True)
    )

    assert quantized <= plain * 0.32


def test_a_family_whose_attention_needs_plain_kv_is_refused() -> None:
    """Its attention in mlx-lm multiplies K itself."""
    with pytest.raises(ConfigurationError, match="kv_quantization"):
        runner_of("gemma2", is_kv_quantized=True)
