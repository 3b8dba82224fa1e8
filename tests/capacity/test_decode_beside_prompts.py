"""Decoding on a node that computes prompts as well."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from baton.capacity.cost import JOIN_STEPS
from baton.capacity.snapshot import NodeLoad, PlacementRequest
from baton.capacity.terms import decode_terms, joined_seconds, pass_seconds, seconds_beside_prompts
from capacity.samples import node

STEP, PASS = 0.01, 0.04


def test_without_prompts_every_step_takes_its_own_time() -> None:
    """Nothing is added."""
    assert seconds_beside_prompts(10, STEP, PASS, prompt_share=0.0) == pytest.approx(10 * STEP)


@pytest.mark.parametrize("prompt_share", [1.0, 2.5])
def test_a_token_is_never_longer_in_coming_than_a_pass(prompt_share: float) -> None:
    """Who decodes takes one in each pass, even where a node does nothing but prompts."""
    assert seconds_beside_prompts(10, STEP, PASS, prompt_share=prompt_share, left_seconds=9.0) == 10 * PASS


def test_passes_and_steps_alternate_by_their_time() -> None:
    """Half of the time in passes: of 0.08 s, one of 0.04 s and four steps of 0.01 s give five tokens."""
    assert seconds_beside_prompts(5, STEP, PASS, prompt_share=0.5) == pytest.approx(0.08)


def test_prompts_that_are_left_come_first() -> None:
    """They take 0.08 s, and give a token in each of their two passes; eight steps follow."""
    assert seconds_beside_prompts(10, STEP, PASS, prompt_share=0.0, left_seconds=0.08) == pytest.approx(0.16)


@given(
    steps=st.floats(1, 500),
    figures=st.lists(st.floats(1e-4, 1.0), min_size=3, max_size=3),
    share=st.floats(0, 1.2),
    more=st.lists(st.floats(1, 3), min_size=5, max_size=5),
)
def test_more_of_anything_takes_no_less(steps: float, figures: list[float], share: float, more: list[float]) -> None:
    """So the figures of a floor give a floor."""
    step, whole, left = figures
    least = seconds_beside_prompts(steps, step, whole, prompt_share=share, left_seconds=left)
    longer = seconds_beside_prompts(
        steps * more[0], step * more[1], whole * more[2], prompt_share=share * more[3], left_seconds=left * more[4]
    )

    assert longer >= least * (1 - 1e-9)


def test_kv_that_comes_while_its_node_computes_prompts_waits_for_a_pass_and_has_its_token_after_another() -> None:
    """Of prompts that are through by then nothing is left to wait for, and of their last pass no more than is left."""
    load = NodeLoad(num_waiting=2, num_pending_prompt_tokens=4096, num_free_blocks=100_000, num_exports=2)
    busy = node("d", "decode", "m3-ultra", load=load)
    decode = decode_terms(PlacementRequest(num_prompt_tokens=64, max_tokens=512), busy, 512.0)
    total, whole = busy.queue.total_seconds, pass_seconds(busy)
    assert total > 2 * whole > 4 * decode.step_seconds

    assert joined_seconds(decode, 0.0) == pytest.approx((1 + JOIN_STEPS) * whole - decode.step_seconds)
    assert joined_seconds(decode, total - whole) == joined_seconds(decode, total - whole / 8) == total
    assert joined_seconds(decode, total) == total
    assert decode.join_seconds == 0.0
