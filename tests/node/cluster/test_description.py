"""Nodes as messages."""

from __future__ import annotations

import pytest

from baton.capacity.hardware import PRESETS
from baton.node.cluster.description import describe_engine
from engine.rig import INFO, mock_runner


@pytest.mark.parametrize(("num_blocks", "max_context_tokens"), [(4, 16), (1000, INFO.max_context_tokens)])
def test_the_longest_sequence_is_what_context_and_blocks_have_room_for(
    num_blocks: int, max_context_tokens: int
) -> None:
    """A gateway fills the context of a request without a limit: more than the blocks hold would be refused."""
    runner = mock_runner(num_blocks=num_blocks, block_tokens=4)
    runner.num_blocks_cause = "a test says so"
    node = describe_engine(runner, PRESETS["h200"].profile())

    assert (node.block_count, node.block_count_cause) == (num_blocks, "a test says so")
    assert node.model_shape.max_context_token_count == max_context_tokens
