"""What a generation and its placement come to where nodes cannot say: its end, its summary, its further hashes."""

from __future__ import annotations

from baton.gateway.generation.requests import GenerationState
from baton.internal.v1.decode_service_pb2 import Finished
from baton.internal.v1.router_service_pb2 import Placement
from baton.kv.hashing import HASH_BYTES, BlockHash, block_hashes, join_hashes
from baton.v1.generation_pb2 import FINISH_REASON_LENGTH, FINISH_REASON_STOP, PlacementSummary, Usage


def hashes_of(generation: GenerationState) -> bytes:
    """Return the chained hashes of the full blocks of prompt and output, joined: what caches may have of them."""
    prompt, num_hashed = generation.prompt, len(generation.prompt.block_hashes) // HASH_BYTES
    if not num_hashed:
        return b""
    rest = [*prompt.token_ids[num_hashed * prompt.block_tokens :], *generation.output_token_ids]
    last = BlockHash(prompt.block_hashes[-HASH_BYTES:])
    return prompt.block_hashes + join_hashes(block_hashes(last, rest, prompt.block_tokens))


def ending_of(generation: GenerationState) -> Finished | None:
    """Return how a generation ended if its tokens say so although its node could not any more, else None."""
    output = generation.output_token_ids
    assert generation.placement is not None
    if output and output[-1] in generation.prompt.end_token_ids:
        reason = FINISH_REASON_STOP
    elif len(output) >= generation.sampling.max_token_count:
        reason = FINISH_REASON_LENGTH
    else:
        return None
    usage = Usage(cached_token_count=generation.num_expected_cached_tokens)
    return Finished(reason=reason, usage=usage, summary=planned_summary(generation.placement))


def planned_summary(placement: Placement) -> PlacementSummary:
    """Return what is known of a placement whose decode node could not report on it."""
    return PlacementSummary(
        decode_node_id=placement.decode_node_id,
        prefill_node_id=placement.prefill_node_id or placement.decode_node_id,
        placement_id=placement.placement_id,
    )
