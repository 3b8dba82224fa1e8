"""A node's description and load as messages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime

from baton.capacity.cost import NodeProfile
from baton.capacity.kv_transfer import WireAbility
from baton.engine.runners.base import Runner
from baton.internal.v1 import node_pb2
from baton.wire.kv import abilities_to_proto, layout_to_proto
from baton.wire.quantities import profile_to_proto, shape_to_proto


def describe_node(
    runner: Runner,
    profile: NodeProfile,
    *,
    node_id: str,
    epoch: int,
    role: node_pb2.NodeRole,
    address: str,
    fast_address: str,
    max_batch_size: int,
    max_step_tokens: int,
    wire_abilities: Sequence[WireAbility] = (),
    is_cache_private: bool = False,
    place: node_pb2.KubernetesPlace | None = None,
    device_id: str = "",
    text_digest: str = "",
) -> node_pb2.NodeDescription:
    """Return who a node is. The longest sequence announced fits both the model's context and the node's blocks."""
    info = runner.info
    max_context_tokens = min(info.max_context_tokens, runner.num_blocks * runner.block_tokens)
    message = profile_to_proto(profile, source="declared" if info.engine == "mock" else "measured")
    message.measured_at.FromDatetime(datetime.now(UTC))
    return node_pb2.NodeDescription(
        node_id=node_id,
        epoch=epoch,
        role=role,
        address=address,
        fast_address=fast_address,
        engine=info.engine,
        device=info.device,
        model_id=info.layout.model_id,
        kv_layout=layout_to_proto(info.layout),
        model_shape=shape_to_proto(replace(info.shape, max_context_tokens=max_context_tokens)),
        profile=message,
        model_context_token_count=info.max_context_tokens,
        block_count=runner.num_blocks,
        block_count_cause=runner.num_blocks_cause,
        block_token_count=runner.block_tokens,
        max_batch_size=max_batch_size,
        max_step_token_count=max_step_tokens,
        tokenizer_digest=info.layout.tokenizer_digest,
        eos_token_ids=info.eos_token_ids,
        wire_abilities=abilities_to_proto(wire_abilities),
        is_cache_private=is_cache_private,
        place=place,
        device_id=device_id,
        text_digest=text_digest,
        adapters=[node_pb2.Adapter(name=each.name, digest=each.digest) for each in info.adapters],
    )
