"""The two compute-time models of declared hardware."""

from __future__ import annotations

import pytest

from baton.capacity.hardware import (
    PRESETS,
    Hardware,
    StepSpan,
    note_step_seconds,
    roofline_step_seconds,
    step_seconds,
)
from baton.capacity.reference_models import LLAMA_3_1_8B, dense_decoder

LLAMA_65B_SIZED = dense_decoder(
    num_layers=80,
    hidden_size=8192,
    intermediate_size=22016,
    num_attention_heads=64,
    num_kv_heads=64,
    head_dim=128,
    vocabulary_size=32000,
    max_context_tokens=2048,
)
A100 = Hardware("a100", 312e12, 2000e9)


def test_the_note_s_formula_pads_the_batch_to_its_longest() -> None:
    """B · max s · max c / (312 · 1500) + s_model / 2000 GB/s, with 2 members of 10 and 30 tokens."""
    spans = [StepSpan(10, 1), StepSpan(30, 20)]

    weights = LLAMA_65B_SIZED.weight_bytes / 2000e9
    assert note_step_seconds(A100, LLAMA_65B_SIZED, spans) == pytest.approx(2 * 30 * 20 / (312 * 1500) + weights)


def test_the_roofline_reads_weights_and_every_context_in_a_decode_step() -> None:
    """A decode step at batch 2 is bound by memory: weights once, both contexts."""
    spans = [StepSpan(1000, 1), StepSpan(3000, 1)]

    num_bytes = LLAMA_3_1_8B.weight_bytes + 4000 * LLAMA_3_1_8B.kv_bytes_per_token
    assert roofline_step_seconds(A100, LLAMA_3_1_8B, spans) == pytest.approx(num_bytes / 2000e9)


def test_the_roofline_is_bound_by_arithmetic_in_a_prefill() -> None:
    """8192 tokens at once take the operations' time."""
    seconds = roofline_step_seconds(A100, LLAMA_3_1_8B, [StepSpan(8192, 8192)])

    assert seconds == pytest.approx(LLAMA_3_1_8B.prefill_flop(0, 8192) / 312e12)


@pytest.mark.parametrize("model", ["note", "roofline"])
def test_a_step_of_nothing_takes_no_time(model: str) -> None:
    """An empty batch costs nothing under either model."""
    assert step_seconds(model, A100, LLAMA_3_1_8B, []) == 0.0  # type: ignore[arg-type]


def test_presets_are_named_by_their_key() -> None:
    """The name on the command line is the name in the description."""
    assert all(name == preset.name for name, preset in PRESETS.items())
    assert {"dgx-spark", "m3-ultra", "h200", "a100"} <= set(PRESETS)
