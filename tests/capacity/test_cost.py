"""The cost formulas against the published and checked figures of docs/placement.md."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from baton.capacity import cost
from baton.capacity.hardware import PRESETS, Hardware, StepSpan, step_seconds
from baton.capacity.reference_models import LLAMA_3_1_8B
from baton.capacity.snapshot import NodeRole, PlacementRequest
from baton.capacity.terms import decode_terms, local_terms, prefill_terms
from baton.engine.checkpoint.cached_state import attention_elements, layer_specs
from baton.wire.quantities import shape_from_proto, shape_to_proto
from capacity.samples import node, pipeline_seconds

PROMPT, OUTPUT = 8192, 32


def test_llama_8b_has_the_seeds_counts() -> None:
    """131.9 TFLOP of prefill, 15.0 GB of weights per step, 128 KiB of KV per token."""
    assert LLAMA_3_1_8B.prefill_flop(0, PROMPT) == pytest.approx(131.9e12, rel=1e-3)
    assert LLAMA_3_1_8B.weight_bytes == pytest.approx(15.0e9, rel=2e-3)
    assert LLAMA_3_1_8B.kv_bytes_per_token == 128 * 1024


@pytest.mark.parametrize(
    ("flops", "bandwidth", "prefill", "generation"),
    [(100e12, 273e9, 1.319, 1.885), (26e12, 819e9, 5.075, 0.628)],
    ids=["dgx-spark", "m3-ultra"],
)
def test_ideal_machines_take_the_seeds_ideal_times(
    flops: float, bandwidth: float, prefill: float, generation: float
) -> None:
    """The ideal columns of the seed table come out to the last digit."""
    profile = Hardware("ideal", flops, bandwidth).profile()

    assert cost.prefill_seconds(LLAMA_3_1_8B, profile, 0, PROMPT) == pytest.approx(prefill, abs=1e-3)
    step = cost.step_seconds(LLAMA_3_1_8B, profile, 1, PROMPT + OUTPUT / 2)
    assert OUTPUT * step == pytest.approx(generation, abs=1e-3)


@pytest.mark.parametrize(
    ("span", "pass_tokens", "expected"),
    [
        ((0, 1024), 0, 0.146),
        ((0, 1024), 512, 0.146),  # each pass is arithmetic
        ((0, 1028), 512, 0.146 + 0.055),  # the last one reads the weights for 4 positions
        ((0, 1028), 0, 0.146),
        ((1000, 1028), 512, 0.055),
        ((0, 1020), 100, 11 * 0.055),  # none is
        ((0, 400), 512, 0.056),
    ],
)
def test_each_pass_of_a_prompt_reads_the_weights(span: tuple[int, int], pass_tokens: int, expected: float) -> None:
    """Where there are few positions for it, that is what it takes."""
    profile = Hardware("machine", 100e12, 273e9).profile()

    assert cost.prefill_seconds(LLAMA_3_1_8B, profile, *span, pass_tokens) == pytest.approx(expected, rel=0.01)


@pytest.mark.parametrize(("preset", "prefill", "generation"), [("dgx-spark", 1.47, 2.87), ("m3-ultra", 5.57, 0.85)])
def test_presets_take_the_published_times(preset: str, prefill: float, generation: float) -> None:
    """With the presets' efficiencies the published columns come out within 1 %."""
    profile = PRESETS[preset].profile()

    assert cost.prefill_seconds(LLAMA_3_1_8B, profile, 0, PROMPT) == pytest.approx(prefill, rel=0.01)
    step = cost.step_seconds(LLAMA_3_1_8B, profile, 1, PROMPT + OUTPUT / 2)
    assert OUTPUT * step == pytest.approx(generation, rel=0.01)


def test_ten_gigabit_hides_all_but_one_layer() -> None:
    """26.8 ms a layer against 45.9 ms of compute: streamed 2.35 s, as one blob 3.18 s."""
    transfer = PROMPT * LLAMA_3_1_8B.kv_bytes_per_token / 1.25e9

    assert transfer / 32 == pytest.approx(26.8e-3, abs=1e-4)
    assert pipeline_seconds(32, 1.47, transfer) + 0.85 == pytest.approx(2.35, abs=0.01)
    assert pipeline_seconds(1, 1.47, transfer) + 0.85 == pytest.approx(3.18, abs=0.01)


@pytest.mark.parametrize(("wire_share", "total"), [(1.0, 9.5), (0.508, 5.3)], ids=["16 bit", "8 bit"])
def test_one_gigabit_is_bound_by_the_link(wire_share: float, total: float) -> None:
    """At 1 GbE the pair takes 9.5 s at 16 bits and 5.3 s at 8, against 6.4 s for the Mac alone."""
    transfer = wire_share * PROMPT * LLAMA_3_1_8B.kv_bytes_per_token / 1.25e8

    assert pipeline_seconds(32, 1.47, transfer) + 0.85 == pytest.approx(total, abs=0.05)


@given(st.integers(1, 128), st.floats(1e-6, 100), st.floats(0, 100))
def test_a_pipeline_is_between_the_longer_part_and_the_sum(num_groups: int, compute: float, send: float) -> None:
    """Overlap never beats the longer of computation and transfer, and never loses to one after the other."""
    total = pipeline_seconds(num_groups, compute, send)

    assert max(compute, send) * (1 - 1e-9) <= total <= (compute + send) * (1 + 1e-9)


def test_prefill_pieces_sum_to_the_whole() -> None:
    """Computing [0, c) and then [c, n) costs as much as [0, n), but for one more output projection."""
    whole = LLAMA_3_1_8B.prefill_flop(0, 1000)

    parts = LLAMA_3_1_8B.prefill_flop(0, 400) + LLAMA_3_1_8B.prefill_flop(400, 1000)
    assert parts - 2 * LLAMA_3_1_8B.num_head_parameters == pytest.approx(whole)


def test_an_empty_backlog_takes_no_time() -> None:
    """A request that waits for KV from elsewhere does not hold up a local prefill."""
    profile = PRESETS["a100"].profile()

    assert cost.backlog_seconds(LLAMA_3_1_8B, profile, 0, 3) == 0


def test_attention_over_latents_is_priced_by_what_it_multiplies() -> None:
    """DeepSeek-V3: 1,152 bytes a token and layer in 16 bits; prompts make heads of latents, steps multiply by them."""
    sizes = {"kv_lora_rank": 512, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "v_head_dim": 128}
    config = {"model_type": "deepseek_v3", "num_attention_heads": 128, "num_hidden_layers": 61, **sizes}
    specs, elements = layer_specs(config), attention_elements(config)
    shape = replace(LLAMA_3_1_8B, attention_elements=elements)

    assert {spec.num_token_elements * 2 for spec in specs} == {1152}
    assert elements == (61 * 128 * (128 + 64 + 128 + 512 * 256 // 512), 61 * 128 * (512 + 64 + 512))
    assert shape.step_flop(1, 1000) - shape.step_flop(1, 0) == 2 * elements.step * 1000
    assert shape.prefill_flop(0, 1000) - LLAMA_3_1_8B.prefill_flop(0, 1000) == pytest.approx(
        (elements.prompt - 2 * 32 * 32 * 128) * 1000**2
    )
    assert shape_from_proto(shape_to_proto(shape)) == shape


@pytest.mark.parametrize("role", ["decode", "prefill"])
def test_an_estimate_counts_the_passes_of_its_node(role: NodeRole) -> None:
    """Of the two roles, by either way: 4 positions beyond two full passes take one more."""
    reckoned = replace(node("n", role, "dgx-spark"), max_step_tokens=512)
    request = PlacementRequest(1028, 8)
    expected = cost.prefill_seconds(reckoned.shape, reckoned.profile, 0, 1028, 512)
    local = local_terms(request, decode_terms(request, reckoned, 8.0))

    assert expected > 1.3 * cost.prefill_seconds(reckoned.shape, reckoned.profile, 0, 1028)
    assert prefill_terms(request, reckoned, 1.0).prefill_seconds == local.prefill_seconds == expected


@pytest.mark.parametrize(("num_tokens", "pass_tokens"), [(40, 0), (40, 512), (5, 512), (1024, 512), (1300, 512)])
def test_a_prompt_beside_others_takes_what_its_passes_take(num_tokens: int, pass_tokens: int) -> None:
    """Each of its passes computes a position of every one that decodes; of few positions it reads weights and KV."""
    hardware, beside = PRESETS["m3-ultra"], cost.Beside(12, 1100)
    size = pass_tokens or num_tokens
    spans = [min(num_tokens - start, size) for start in range(0, num_tokens, size)]
    others = [StepSpan(1100, 1)] * 12
    ends = [sum(spans[: index + 1]) for index in range(len(spans))]
    expected = sum(
        step_seconds(hardware, LLAMA_3_1_8B, [*others, StepSpan(end, own)])
        for end, own in zip(ends, spans, strict=True)
    )

    told = cost.prefill_seconds(LLAMA_3_1_8B, hardware.profile(), 0, num_tokens, pass_tokens, beside)

    assert told == pytest.approx(expected, rel=0.02)
    assert told > cost.prefill_seconds(LLAMA_3_1_8B, hardware.profile(), 0, num_tokens, pass_tokens)
