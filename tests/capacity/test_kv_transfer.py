"""The frames of a prompt, and the number formats in which K and V travel: the table of decisions."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from baton.capacity import cost
from baton.capacity.hardware import PRESETS
from baton.capacity.kv_transfer import (
    LEAST_CHUNK_GAIN,
    MIN_CHUNK_TOKENS,
    FramePlan,
    WireOption,
    WirePolicy,
    WireReason,
    choose_wire,
    plan_frames,
)
from baton.capacity.placement import place
from baton.capacity.snapshot import Link, PlacementRequest
from capacity.samples import LLAMA_3_1_8B, pair, pipeline_seconds

TOKEN_BYTES = LLAMA_3_1_8B.kv_bytes_per_token


def planned(
    hardware: str, gigabits: float, num_tokens: int, *, max_chunk_tokens: int, num_layers: int = 32
) -> FramePlan:
    """Return the frames of Llama 3.1 8B from some hardware over some link; its layers counted as others."""
    profile = PRESETS[hardware].profile()
    return plan_frames(
        num_tokens,
        num_layers,
        max_chunk_tokens=max_chunk_tokens,
        compute_seconds=cost.prefill_seconds(LLAMA_3_1_8B, profile, 0, num_tokens),
        send_seconds=num_tokens * TOKEN_BYTES * 8 / (gigabits * 1e9),
        least_pass_seconds=LLAMA_3_1_8B.step_bytes(1, 0) / profile.decode_bytes_per_second,
        pass_overhead_seconds=profile.prefill_overhead_seconds,
    )


@pytest.mark.parametrize(
    ("hardware", "gigabits", "num_tokens", "max_chunk_tokens", "num_layers", "layers_per_frame", "chunk_tokens"),
    [
        # A short prompt goes as one group.
        ("dgx-spark", 10, 1, 8192, 32, 32, 0),
        ("h200", 10, 2, 8192, 32, 16, 0),
        ("dgx-spark", 100, 16, 512, 32, 32, 0),
        # A longer one in groups, the smaller the longer.
        ("h200", 10, 16, 8192, 32, 2, 0),
        ("h200", 100, 64, 8192, 32, 8, 0),
        ("h200", 10, 256, 8192, 32, 4, 0),
        # A long one layer by layer, in the passes that the node makes anyway.
        ("dgx-spark", 10, 512, 512, 32, 1, 0),
        ("dgx-spark", 10, 8192, 512, 32, 1, 0),
        # Where the link is so slow that all waits for it, or so fast that a layer is no useful frame: larger groups.
        ("dgx-spark", 1, 8192, 512, 32, 4, 0),
        ("h200", 100, 8192, 256, 32, 2, 0),
        ("h200", 400, 8192, 256, 32, 8, 0),
        # A node that computes the prompt at once: many layers share the transfer out well enough ...
        ("dgx-spark", 10, 8192, 8192, 32, 1, 0),
        # ... few do not, so chunks are shorter, the shorter the fewer layers there are and the faster the node is.
        ("dgx-spark", 10, 8192, 8192, 8, 1, 2048),
        ("dgx-spark", 10, 8192, 8192, 4, 1, 1024),
        ("h200", 40, 8192, 8192, 4, 1, 512),
        # Where nothing is known of the node, its chunks are left alone.
        ("dgx-spark", 10, 8192, 0, 4, 1, 0),
    ],
)
def test_frames_follow_the_speeds(
    hardware: str,
    gigabits: float,
    num_tokens: int,
    max_chunk_tokens: int,
    num_layers: int,
    layers_per_frame: int,
    chunk_tokens: int,
) -> None:
    """Of computation and link; the table is the rule in numbers."""
    plan = planned(hardware, gigabits, num_tokens, max_chunk_tokens=max_chunk_tokens, num_layers=num_layers)

    assert (plan.layers_per_frame, plan.chunk_tokens) == (layers_per_frame, chunk_tokens)


SECONDS = st.floats(1e-6, 100)


@given(st.integers(1, 100_000), st.integers(1, 128), st.sampled_from([0, 300, 512, 4096, 65536]), SECONDS, SECONDS)
def test_no_plan_is_worse_than_one_frame_or_single_layers(
    num_tokens: int, num_layers: int, max_chunk_tokens: int, compute: float, send: float
) -> None:
    """Of the node's own passes; and no frame is smaller than its fixed cost is worth, but the largest."""
    plan = plan_frames(
        num_tokens,
        num_layers,
        max_chunk_tokens=max_chunk_tokens,
        compute_seconds=compute,
        send_seconds=send,
        pass_overhead_seconds=1e-3,
    )
    num_own = math.ceil(num_tokens / (max_chunk_tokens or num_tokens))
    num_passes = math.ceil(num_tokens / plan.chunk_tokens) if plan.chunk_tokens else num_own
    num_groups = math.ceil(num_layers / plan.layers_per_frame)

    assert 1 <= plan.layers_per_frame <= num_layers
    overhead = cost.FRAME_OVERHEAD_SECONDS
    assert plan.start_seconds <= pipeline_seconds(num_own, compute, send + num_own * overhead) * (1 + 1e-9)
    if num_groups > 1:
        assert send >= num_passes * num_groups * overhead
    elif send >= (num_least := num_own * num_layers) * overhead:
        assert plan.start_seconds <= pipeline_seconds(num_least, compute, send + num_least * overhead) + 1e-9


@given(st.integers(1, 100_000), st.integers(1, 128), st.sampled_from([300, 512, 4096, 65536]), SECONDS, SECONDS)
def test_a_shorter_chunk_is_worth_its_passes(
    num_tokens: int, num_layers: int, max_chunk_tokens: int, compute: float, send: float
) -> None:
    """It saves more than it costs, by the least gain, and is no shorter than is of use."""
    arguments = {"compute_seconds": compute, "send_seconds": send}
    plan = plan_frames(
        num_tokens, num_layers, max_chunk_tokens=max_chunk_tokens, pass_overhead_seconds=1e-3, **arguments
    )
    own = plan_frames(num_tokens, num_layers, max_chunk_tokens=0, **arguments)

    if plan.chunk_tokens:
        assert MIN_CHUNK_TOKENS <= plan.chunk_tokens < min(num_tokens, max_chunk_tokens)
        assert plan.compute_seconds > compute
        if max_chunk_tokens >= num_tokens:
            assert plan.start_seconds <= (1 - LEAST_CHUNK_GAIN) * own.start_seconds
    else:
        assert plan.compute_seconds == compute


def test_a_chunk_is_never_so_short_that_reading_the_weights_takes_longer() -> None:
    """The device would wait for its memory."""
    arguments = {"max_chunk_tokens": 4096, "compute_seconds": 1.0, "send_seconds": 1.0}
    free = plan_frames(4096, 2, **arguments)
    bound = plan_frames(4096, 2, least_pass_seconds=0.45, **arguments)

    assert free.chunk_tokens < bound.chunk_tokens == 2048


@given(st.integers(1, 16), st.integers(1, 48), st.floats(0.1, 10), st.floats(0.1, 10), st.floats(0.1, 10))
def test_states_leave_with_the_last_pass(
    num_passes: int, num_layers: int, compute: float, kv_seconds: float, state_seconds: float
) -> None:
    """What is left of the transfer is what sending frame by frame leaves: K and V of each pass, states of the last."""
    plan = plan_frames(
        512 * num_passes,
        num_layers,
        max_chunk_tokens=512,
        compute_seconds=compute,
        send_seconds=kv_seconds + state_seconds,
        state_seconds=state_seconds,
        least_pass_seconds=compute / num_passes,  # no shorter chunks
    )

    num_frames = num_passes * num_layers
    now = 0.0
    for frame in range(num_frames):
        is_last_pass = frame >= num_frames - num_layers
        sending = kv_seconds / num_frames + (state_seconds / num_layers if is_last_pass else 0.0)
        now = max(now, (frame + 1) * compute / num_frames) + sending
    slack = 2 * num_frames * cost.FRAME_OVERHEAD_SECONDS
    assert plan.exposed_seconds == pytest.approx(now - compute, abs=slack)


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
    """8192 tokens of Llama 3.1 8B, DGX to Mac (docs/placement.md): 16-bit KV loses to the Mac alone, 8-bit wins."""
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
    assert narrowed.estimate.transfer_seconds == pytest.approx(narrowed.kv_bytes / 1.25e8 + 32 * 1e-4)
    assert narrowed.wire.key_seconds + narrowed.wire.value_seconds == pytest.approx(narrowed.kv_bytes / 1.25e8)


def test_states_of_layers_travel_besides() -> None:
    """Whatever the prompt's length and the format of K and V: their bytes and time are in the plan."""
    own = WireOption("bfloat16", TOKEN_BYTES // 2, TOKEN_BYTES - TOKEN_BYTES // 2)
    request, plans = PlacementRequest(num_prompt_tokens=8192, max_tokens=32), []
    for state_bytes in (0, 154_000_000):
        snapshot = pair(Link(1.25e9, 0.0, wires=(own,)))
        nodes = tuple(replace(node, shape=replace(node.shape, state_bytes=state_bytes)) for node in snapshot.nodes)
        candidates = place(replace(snapshot, nodes=nodes), request).candidates
        plans.append(next(each for each in candidates if each.wire is not None))

    without, with_states = plans
    assert without.wire is not None
    assert with_states.wire is not None
    assert without.estimate is not None
    assert with_states.estimate is not None
    assert (without.wire.state_bytes, with_states.wire.state_bytes) == (0, 154_000_000)
    assert with_states.wire.state_seconds == pytest.approx(0.1232)
    assert with_states.kv_bytes - without.kv_bytes == 154_000_000
    assert with_states.wire.key_bytes == without.wire.key_bytes
    assert with_states.estimate.transfer_seconds > without.estimate.transfer_seconds
    assert with_states.estimate.step_seconds > without.estimate.step_seconds
