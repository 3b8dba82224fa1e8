"""In what K and V travel: the table of decisions, and what the placement makes of one."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from baton.capacity.placement import place
from baton.capacity.snapshot import Link, PlacementRequest
from baton.capacity.wire import WireOption, WirePolicy, WireReason, choose_wire
from capacity.samples import pair

OWN = WireOption("bfloat16", 1000, 1000)
INT8 = WireOption("int8", 516, 516, key_loss=0.004, value_loss=0.0002)
AFFINE8 = WireOption("affine8", 531, 531, key_loss=0.001, value_loss=0.0001)
FP8 = WireOption("fp8", 516, 516, key_loss=0.02, value_loss=0.002)
OPTIONS = (OWN, INT8, AFFINE8, FP8)
SLOW, FAST = 1e3, 1e6
"""Links: a token of 2000 bytes takes 2 s, or 2 ms."""


@pytest.mark.parametrize(
    ("rate", "compute_seconds", "policy", "keys", "values", "reason"),
    [
        # The link keeps up: lossless, however much loss is allowed.
        (FAST, 1.0, WirePolicy(), "bfloat16", "bfloat16", WireReason.KEEPS_UP),
        (FAST, 1.0, WirePolicy(allowed_loss=9.0), "bfloat16", "bfloat16", WireReason.KEEPS_UP),
        # It does not, and the operator allows nothing: lossless still.
        (SLOW, 1.0, WirePolicy(), "bfloat16", "bfloat16", WireReason.NO_LOSS_ALLOWED),
        (SLOW, 1.0, WirePolicy(allowed_loss=1e-6), "bfloat16", "bfloat16", WireReason.NO_LOSS_ALLOWED),
        # V alone is within the bound; then K and V; the least lossy of what is equally fast.
        (SLOW, 1.0, WirePolicy(allowed_loss=0.0003), "bfloat16", "int8", WireReason.NARROWED),
        (SLOW, 1.0, WirePolicy(allowed_loss=0.0013), "affine8", "int8", WireReason.NARROWED),
        (SLOW, 1.0, WirePolicy(allowed_loss=1.0), "int8", "int8", WireReason.NARROWED),
        # Where more than one hides the transfer, the least lossy of them, not the smallest.
        (SLOW, 15.4, WirePolicy(allowed_loss=1.0), "bfloat16", "affine8", WireReason.NARROWED),
        (SLOW, 10.7, WirePolicy(allowed_loss=1.0), "affine8", "affine8", WireReason.NARROWED),
        # The operator names formats: their loss is permitted, whatever the link.
        (FAST, 1.0, WirePolicy("int8", "int8"), "int8", "int8", WireReason.SET),
        (FAST, 1.0, WirePolicy("cache", "fp8"), "bfloat16", "fp8", WireReason.SET),
        (SLOW, 1.0, WirePolicy("cache", "cache", 9.0), "bfloat16", "bfloat16", WireReason.SET),
        (SLOW, 1.0, WirePolicy("float16", "float16"), "bfloat16", "bfloat16", WireReason.SET_BUT_UNABLE),
    ],
)
def test_the_table_of_decisions(
    rate: float, compute_seconds: float, policy: WirePolicy, keys: str, values: str, reason: WireReason
) -> None:
    """Ten positions, 2000 bytes each in the cache."""
    choice = choose_wire(OPTIONS, policy, num_tokens=10, bytes_per_second=rate, compute_seconds=compute_seconds)

    assert (choice.keys.dtype, choice.values.dtype, choice.reason) == (keys, values, reason)
    assert choice.loss <= policy.allowed_loss or choice.reason is WireReason.SET


def test_a_format_that_packs_slower_than_the_link_carries_is_not_taken() -> None:
    """Its time counts beside the link's; less than a twentieth saved is not worth a loss."""
    slow_packing = replace(INT8, key_pack_seconds=1.96, value_pack_seconds=1.96)
    choice = choose_wire(
        (OWN, slow_packing), WirePolicy(allowed_loss=1.0), num_tokens=10, bytes_per_second=SLOW, compute_seconds=1.0
    )

    assert (choice.reason, choice.loss) == (WireReason.NO_GAIN, 0.0)


def test_a_loss_that_nobody_measured_is_never_allowed() -> None:
    """It counts as infinite."""
    unknown = replace(INT8, key_loss=math.inf, value_loss=math.inf)
    choice = choose_wire(
        (OWN, unknown), WirePolicy(allowed_loss=1e9), num_tokens=10, bytes_per_second=SLOW, compute_seconds=1.0
    )

    assert choice.reason is WireReason.NO_LOSS_ALLOWED


def test_a_measured_loss_of_nothing_is_still_no_lossless_format() -> None:
    """Calibration saw none on its few tokens; who allows no loss gets the cache's own bytes."""
    lucky = replace(INT8, key_loss=0.0, value_loss=0.0)
    choice = choose_wire((OWN, lucky), WirePolicy(), num_tokens=10, bytes_per_second=SLOW, compute_seconds=1.0)

    assert (choice.keys.dtype, choice.reason) == ("bfloat16", WireReason.NO_LOSS_ALLOWED)


def test_where_the_cache_has_one_format_there_is_no_choice() -> None:
    """Said so where the link is the bottleneck."""
    choice = choose_wire((OWN,), WirePolicy(), num_tokens=10, bytes_per_second=SLOW, compute_seconds=1.0)

    assert choice.reason is WireReason.NO_OPTION


def test_a_conversion_between_caches_is_called_one() -> None:
    """Although the link keeps up: nothing else would be truer."""
    rounded = replace(OWN, key_loss=0.001, is_conversion=True)
    choices = [
        choose_wire(
            options, WirePolicy(allowed_loss=0.1), num_tokens=10, bytes_per_second=SLOW, compute_seconds=seconds
        )
        for options, seconds in (((rounded,), 1.0), ((rounded, INT8), 1e9))
    ]

    assert [(choice.reason, choice.loss) for choice in choices] == [(WireReason.CONVERTED, 0.001)] * 2


def test_the_anchor_at_one_gigabit() -> None:
    """8192 tokens of Llama 3.1 8B, DGX to Mac: 16-bit KV loses to the Mac alone, 8-bit wins. Source: ANCHORS.md §2."""
    half = 64 * 1024
    own = WireOption("bfloat16", half, half)
    int8 = WireOption("int8", half * 33 // 64, half * 33 // 64, key_loss=0.001, value_loss=0.001)
    snapshot = pair(Link(1.25e8, 0.0, wires=(own, int8)))
    request = PlacementRequest(num_prompt_tokens=8192, max_tokens=32)
    exact = place(snapshot, request).choice
    narrowed = place(replace(snapshot, wire_policy=WirePolicy(allowed_loss=0.01)), request).choice

    assert exact is not None
    assert exact.is_local
    assert narrowed is not None
    assert narrowed.wire is not None
    assert (narrowed.prefill_node_id, narrowed.wire.key_dtype, narrowed.wire.value_dtype) == ("dgx", "int8", "int8")
    assert narrowed.kv_bytes == narrowed.wire.key_bytes + narrowed.wire.value_bytes == 8192 * 2 * (half * 33 // 64)
    assert narrowed.estimate is not None
    assert narrowed.estimate.transfer_seconds == pytest.approx(narrowed.kv_bytes / 1.25e8)
    assert narrowed.wire.key_seconds + narrowed.wire.value_seconds == pytest.approx(narrowed.estimate.transfer_seconds)
