"""Who can bring the KV of a placed request, and what it would take to compute it here."""

from __future__ import annotations

from typing import Protocol

from baton.capacity import cost
from baton.capacity.profile import NodeProfile
from baton.decode.recovery import PrefillOption
from baton.engine.engine import Engine
from baton.engine.runners.base import Runner
from baton.rpc.wire_capacity import estimate_from_proto
from baton.v1.router_service_pb2 import Placement, PrefillAlternative


class ComputingNode(Protocol):
    """This node, as far as it computes prompts; `baton.worker.node.WorkerNode` is one."""

    engine: Engine
    runner: Runner
    profile: NodeProfile


def prefill_options(placement: Placement, decode_node_id: str) -> list[PrefillOption]:
    """Return the node that the router chose, then its alternatives."""
    options = [_option(placement), *(_option(alternative) for alternative in placement.alternatives)]
    return [option for option in options if option.node_id not in ("", decode_node_id)]


def local_seconds(node: ComputingNode, start: int, num_tokens: int) -> float:
    """Return the time in which this node computes positions [start, num_tokens), behind the prompts that it has."""
    load, shape = node.engine.load(), node.runner.info.shape
    backlog = cost.backlog_seconds(shape, node.profile, load.num_pending_prompt_tokens, load.num_waiting)
    return backlog + cost.prefill_seconds(shape, node.profile, start, num_tokens)


def _option(message: Placement | PrefillAlternative) -> PrefillOption:
    return PrefillOption(
        message.prefill_node_id,
        message.layers_per_frame,
        message.chunk_token_count,
        message.wire_dtype,
        message.value_wire_dtype,
        estimate_from_proto(message.estimate) if message.HasField("estimate") else None,
    )
