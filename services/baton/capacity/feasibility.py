"""Whether a node can take a request at all."""

from __future__ import annotations

import math

from baton.capacity.snapshot import NodeSnapshot, PlacementRequest

DEFAULT_OUTPUT_TOKENS = 256
"""Output counted on where no request has finished yet."""


def expected_output_tokens(request: PlacementRequest, node: NodeSnapshot, mean_output_tokens: float | None) -> float:
    """Return the output to count on: the recent mean (256 without one), within what request and context allow."""
    room = min(request.max_tokens, max(1, node.shape.max_context_tokens - request.num_prompt_tokens))
    mean = DEFAULT_OUTPUT_TOKENS if mean_output_tokens is None else mean_output_tokens
    return max(1.0, min(float(room), mean))


def infeasible_reason(node: NodeSnapshot, request: PlacementRequest, num_tokens: int) -> str:
    """Return why `node` can never hold `num_tokens` positions of a request, or not now; empty if it can.

    A full pool is no reason: the request waits in the node's queue, which costs time (`room_seconds`).
    """
    if node.node_id in request.excluded_node_ids:
        return f"{node.node_id}: excluded by the request"
    if node.unusable_reason:
        return f"{node.node_id}: {node.unusable_reason}"
    if request.num_prompt_tokens >= node.shape.max_context_tokens:
        return f"{node.node_id}: context is {node.shape.max_context_tokens} tokens"
    if blocks_for(node, num_tokens) > node.num_blocks:
        return f"{node.node_id}: needs {blocks_for(node, num_tokens)} blocks, has {node.num_blocks}"
    return ""


def blocks_for(node: NodeSnapshot, num_tokens: int) -> int:
    """Return the blocks that `num_tokens` positions take."""
    return math.ceil(num_tokens / node.block_tokens)


def room_seconds(node: NodeSnapshot, num_new_blocks: int, output_seconds: float) -> float:
    """Return the time until the batch has a slot and the pool has `num_new_blocks` free.

    Running requests are taken to end evenly spread over `output_seconds`, each giving back a slot and its share of
    the blocks.
    """
    num_on_node = node.load.num_running + node.load.num_waiting
    missing_slots = max(0, num_on_node + 1 - node.max_batch_size) / node.max_batch_size
    num_missing_blocks = max(0, num_new_blocks - node.load.num_free_blocks)
    num_held_blocks = max(1, node.num_blocks - node.load.num_free_blocks)
    return output_seconds * max(missing_slots, num_missing_blocks / num_held_blocks)
