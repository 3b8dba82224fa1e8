"""What steps take on declared hardware."""

from __future__ import annotations

import pytest

from baton.capacity.hardware import PRESETS, Hardware, StepSpan, step_seconds
from baton.capacity.reference_models import LLAMA_3_1_8B

A100 = Hardware("a100", 312e12, 2000e9)


def test_the_roofline_reads_weights_and_every_context_in_a_decode_step() -> None:
    """A decode step at batch 2 is bound by memory: weights once, both contexts."""
    spans = [StepSpan(1000, 1), StepSpan(3000, 1)]

    num_bytes = LLAMA_3_1_8B.weight_bytes + 4000 * LLAMA_3_1_8B.kv_bytes_per_token
    assert step_seconds(A100, LLAMA_3_1_8B, spans) == pytest.approx(num_bytes / 2000e9)


def test_the_roofline_is_bound_by_arithmetic_in_a_prefill() -> None:
    """8192 tokens at once take the operations' time."""
    seconds = step_seconds(A100, LLAMA_3_1_8B, [StepSpan(8192, 8192)])

    assert seconds == pytest.approx(LLAMA_3_1_8B.prefill_flop(0, 8192) / 312e12)


def test_a_step_of_nothing_takes_no_time() -> None:
    """An empty batch costs nothing."""
    assert step_seconds(A100, LLAMA_3_1_8B, []) == 0.0


def test_presets_are_named_by_their_key() -> None:
    """The name on the command line is the name in the description."""
    assert all(name == preset.name for name, preset in PRESETS.items())
    assert {"dgx-spark", "m3-ultra", "h200", "a100"} <= set(PRESETS)
