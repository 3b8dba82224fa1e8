"""What nodes can do by formula."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bench.node_rates import NodeRates, capacity_per_second, pair_utilisation

NODE = NodeRates(
    node_id="a",
    can_decode=True,
    prefill_flops=200e12,
    prefill_overhead_seconds=0.0,
    decode_flops=200e12,
    decode_bytes_per_second=1e12,
    step_overhead_seconds=0.0,
    num_linear_parameters=7_000_000_000,
    num_head_parameters=0,
    attention_flop_per_pair=0.0,
    weight_bytes=14_000_000_000,
    kv_bytes_per_token=100_000,
    max_pass_tokens=500,
    max_batch_size=10,
    num_pool_tokens=100_000,
)
PREFILL = replace(NODE, node_id="p", can_decode=False)


def test_a_prompt_takes_its_operations_over_the_rate() -> None:
    """2 per parameter and token; a short one takes as long as reading the weights, once per pass."""
    assert NODE.prefill_seconds(1000) == pytest.approx(14e12 / 200e12)
    assert NODE.prefill_seconds(10) == pytest.approx(14e9 / 1e12)
    assert replace(NODE, max_pass_tokens=100).prefill_seconds(1000) == pytest.approx(10 * 14e9 / 1e12)


def test_a_full_batch_shares_the_weights() -> None:
    """A step of ten sequences reads the weights once, and the pool holds ten of them."""
    assert NODE.full_batch(1000) == 10
    assert NODE.full_batch(50_000) == 2
    assert NODE.decode_seconds(1000, 101) == pytest.approx(100 * NODE.step_seconds(10, 1050.5) / 10)


def test_utilisation_is_work_per_second() -> None:
    """Of the node that computes, of the link, of the node that generates; an unknown link counts as 0."""
    used = pair_utilisation(PREFILL, NODE, 1e9, 2.0, 1000, 101)

    assert used.prefill == pytest.approx(2 * 0.07)
    assert used.link == pytest.approx(2 * 0.1)
    assert used.decode == pytest.approx(2 * NODE.decode_seconds(1000, 101))
    assert pair_utilisation(PREFILL, NODE, 0.0, 2.0, 1000, 101).link == 0.0


def test_capacity_of_a_node_alone_shares_its_time() -> None:
    """Prompt and output of a request take its time one after the other."""
    seconds = NODE.prefill_seconds(1000) + NODE.decode_seconds(1000, 101)

    assert capacity_per_second([NODE], 1000, 101) == pytest.approx(1 / seconds)


def test_capacity_of_a_pair_is_that_of_what_is_full_first() -> None:
    """Long outputs fill the decode node; beside short ones it computes prompts in the time that is left."""
    prompt, short = NODE.prefill_seconds(1000), NODE.decode_seconds(1000, 11)

    assert capacity_per_second([PREFILL, NODE], 1000, 101) == pytest.approx(1 / NODE.decode_seconds(1000, 101))
    # rate = 1 / prompt of the prefill node + (1 - rate * short) / prompt of the other
    assert capacity_per_second([PREFILL, NODE], 1000, 11) == pytest.approx(2 / (prompt + short))


def test_nobody_generates() -> None:
    """Prefill nodes alone serve nothing."""
    with pytest.raises(ValueError, match="no node generates"):
        capacity_per_second([PREFILL], 1000, 101)
