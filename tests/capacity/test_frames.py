"""The frames of a prompt: groups of layers and chunks of positions, from the speeds of computation and link."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from baton.capacity import cost
from baton.capacity.frames import LEAST_GAIN, MIN_CHUNK_TOKENS, FramePlan, plan_frames
from baton.capacity.hardware import PRESETS
from capacity.samples import LLAMA_3_1_8B

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
        ("h200", 10, 2, 8192, 32, 32, 0),
        ("dgx-spark", 100, 16, 512, 32, 32, 0),
        # A longer one in groups, the smaller the longer.
        ("h200", 10, 16, 8192, 32, 16, 0),
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
    assert plan.start_seconds <= (compute + cost.exposed_seconds(num_own, compute, send)) * (1 + 1e-9)
    if num_groups > 1:
        assert send >= num_passes * num_groups * cost.FRAME_OVERHEAD_SECONDS
    elif send >= num_own * num_layers * cost.FRAME_OVERHEAD_SECONDS:
        assert plan.start_seconds <= compute + cost.exposed_seconds(num_own * num_layers, compute, send) + 1e-9


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
            assert plan.start_seconds <= (1 - LEAST_GAIN) * own.start_seconds
    else:
        assert plan.compute_seconds == compute


def test_a_chunk_is_never_so_short_that_reading_the_weights_takes_longer() -> None:
    """The device would wait for its memory."""
    arguments = {"max_chunk_tokens": 4096, "compute_seconds": 1.0, "send_seconds": 1.0}
    free = plan_frames(4096, 2, **arguments)
    bound = plan_frames(4096, 2, least_pass_seconds=0.45, **arguments)

    assert free.chunk_tokens < bound.chunk_tokens == 2048
