"""The cluster as exo's API shows it, from what the router knows of its nodes. What no node reports is left out."""

from __future__ import annotations

import math
import uuid
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from baton.capacity.snapshot import NodePair
from baton.errors import OutOfMemoryError, UnavailableError
from baton.gateway.api.errors import invalid
from baton.gateway.api.exo.instances import Instance
from baton.gateway.cluster.router_client import RouterClient
from baton.internal.v1.node_pb2 import NodeDescription, SystemSample
from baton.internal.v1.router_service_pb2 import Candidate, CostEstimate, NodeState, PlaceRequest
from baton.wire.node_roles import decodes, role_word
from baton.wire.quantities import seconds_from_duration

INSTANCE_TAG = "BatonInstance"
"""The one key of an instance's document."""

_SENSORS = {
    "gpuUsage": "gpu_usage",
    "temp": "temperature_celsius",
    "sysPower": "power_watts",
    "pcpuUsage": "performance_cpu_usage",
    "ecpuUsage": "efficiency_cpu_usage",
}
_MEMORY = {
    "ramTotal": "memory_byte_count",
    "ramAvailable": "available_memory_byte_count",
    "swapTotal": "swap_byte_count",
    "swapAvailable": "available_swap_byte_count",
}


def models_document(models: Iterable[tuple[str, int]], created_seconds: int) -> dict[str, Any]:
    """Return GET /models: names, longest sequences, and 0 as size on disk: there is nothing to download."""
    entries = [
        {
            "id": model,
            "object": "model",
            "created": created_seconds,
            "owned_by": "baton",
            "name": model.rpartition("/")[2],
            "hugging_face_id": model,
            "description": "",
            "context_length": max_context_tokens,
            "tags": [],
            "storage_size_megabytes": 0,
            "supports_tensor": False,
            "tasks": ["TextGeneration"],
        }
        for model, max_context_tokens in models
    ]
    return {"object": "list", "data": entries}


def state_document(states: Sequence[NodeState], instances: Iterable[Instance]) -> dict[str, Any]:
    """Return GET /state."""
    nodes = {state.node.node_id: state.node for state in states}
    pinned = list(instances)
    return {
        "instances": {instance.instance_id: instance_document(instance, nodes) for instance in pinned},
        "runners": {
            runner_id(instance.instance_id, node_id): _runner(node_id, nodes)
            for instance in pinned
            for node_id in instance.node_ids
        },
        "nodeIdentities": {node_id: _identity(node) for node_id, node in nodes.items()},
        "topology": {"nodes": list(nodes), "connections": _connections(states)},
        "nodeMemory": {
            state.node.node_id: _memory(state.load.system)
            for state in states
            if state.load.system.HasField("memory_byte_count")
        },
        "nodeSystem": {state.node.node_id: _system(state.load.system) for state in states},
    }


def instance_document(instance: Instance, nodes: Mapping[str, NodeDescription]) -> dict[str, Any]:
    """Return an instance under its tag; every node holds all layers, and does one or both phases."""
    runners = {node_id: runner_id(instance.instance_id, node_id) for node_id in instance.node_ids}
    shards = {
        runners[node_id]: _shard(instance, rank, node_id, nodes.get(node_id))
        for rank, node_id in enumerate(instance.node_ids)
    }
    assignments = {"modelId": instance.model, "nodeToRunner": runners, "runnerToShard": shards}
    return {INSTANCE_TAG: {"instanceId": instance.instance_id, "shardAssignments": assignments}}


def runner_id(instance_id: str, node_id: str) -> str:
    """Return the name of a node's part in an instance."""
    return f"{instance_id}.{node_id}"


def _shard(instance: Instance, rank: int, node_id: str, node: NodeDescription | None) -> dict[str, Any]:
    num_layers = node.model_shape.layer_count if node is not None else 0
    is_decode = node_id == instance.nodes.decode_node_id
    shard = {
        "modelCard": {"modelId": instance.model},
        "deviceRank": rank,
        "worldSize": len(instance.node_ids),
        "startLayer": 0,
        "endLayer": num_layers,
        "nLayers": num_layers,
        "phases": ["prefill"]
        if not is_decode
        else ["decode"]
        if instance.nodes.prefill_node_id
        else ["prefill", "decode"],
    }
    return {"PipelineShardMetadata": shard}


def _runner(node_id: str, nodes: Mapping[str, NodeDescription]) -> dict[str, Any]:
    if node_id in nodes:
        return {"RunnerReady": {}}
    return {"RunnerFailed": {"errorMessage": f"node {node_id} is not registered"}}


def _identity(node: NodeDescription) -> dict[str, Any]:
    return {
        "friendlyName": node.node_id,
        "chipId": node.device,
        "role": role_word(node.role),
        "engine": node.engine,
        "address": node.address,
        "servedModelId": node.model_id,
    }


def _connections(states: Iterable[NodeState]) -> dict[str, dict[str, list[dict[str, float]]]]:
    """Return the measured links into nodes that decode."""
    connections: dict[str, dict[str, list[dict[str, float]]]] = {}
    for state in states:
        for link in state.links:
            edge = {"bytesPerSecond": link.bytes_per_second, "roundTripSeconds": seconds_from_duration(link.round_trip)}
            connections.setdefault(link.from_node_id, {})[state.node.node_id] = [edge]
    return connections


def _memory(sample: SystemSample) -> dict[str, dict[str, int]]:
    return {name: {"inBytes": getattr(sample, field)} for name, field in _MEMORY.items() if sample.HasField(field)}


def _system(sample: SystemSample) -> dict[str, float]:
    values = {name: getattr(sample, field) for name, field in _SENSORS.items() if sample.HasField(field)}
    return {name: value for name, value in values.items() if math.isfinite(value)}


PROMPT_TOKENS, OUTPUT_TOKENS = 1024, 128
"""The request whose cost is shown where the query names none; at most three and one quarters of the context."""

_MAX_TOKENS = 2**31 - 1


async def fetch_previews(
    router: RouterClient,
    model: str,
    nodes: Mapping[str, NodeDescription],
    *,
    prompt_tokens: int | None = None,
    max_tokens: int | None = None,
) -> dict[str, Any]:
    """Return the previews, cheapest first; those that cannot be have an `error`. None while no node could take it.

    Tokens of the request that is priced: None is what fits the context. Raises BatonError if the router does not
    answer.
    """
    own = [node for node in nodes.values() if decodes(node) and node.model_id == model]
    context_tokens = max((node.model_shape.max_context_token_count for node in own), default=0)
    request = PlaceRequest(
        request_id=f"preview-{uuid.uuid4()}",
        model_id=model,
        prompt_token_count=prompt_tokens or min(PROMPT_TOKENS, max(1, context_tokens * 3 // 4)),
        max_token_count=max_tokens or min(OUTPUT_TOKENS, max(1, context_tokens // 4)),
        bypass_prefix_cache=True,  # all of the prompt is computed: no cache is counted on
        is_dry_run=True,
    )
    candidates: Sequence[Candidate] = ()
    try:
        candidates = (await router.place(request)).candidates
    except (OutOfMemoryError, UnavailableError) as error:
        if error.reason not in ("NO_NODE", "OUT_OF_MEMORY"):
            raise
    return {"previews": [_preview(request, candidate, nodes) for candidate in candidates]}


def _preview(request: PlaceRequest, candidate: Candidate, nodes: Mapping[str, NodeDescription]) -> dict[str, Any]:
    pair = NodePair(candidate.decode_node_id, candidate.prefill_node_id)
    instance = Instance(str(uuid.uuid4()), request.model_id, pair)
    return {
        "model_id": request.model_id,
        "sharding": "Pipeline",
        "instance_meta": "BatonRing",
        "instance": None if candidate.infeasible_reason else instance_document(instance, nodes),
        "nodes": instance.node_ids,
        "memory_delta_by_node": {},
        "error": candidate.infeasible_reason or None,
        "reference_request": {"prompt_tokens": request.prompt_token_count, "max_tokens": request.max_token_count},
        "kv_bytes": candidate.kv_byte_count,
        # Every term, in seconds but for the count of tokens; zeros are terms too.
        "estimate": {field.name: getattr(candidate.estimate, field.name) for field in CostEstimate.DESCRIPTOR.fields},
    }


def count_in_query(query: Mapping[str, str], name: str) -> int | None:
    """Return what a query says of the request to be priced; None: nothing. Raises ApiError 400 if it is no count."""
    text = query.get(name)
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and len(text) < 11 and 1 <= int(text) <= _MAX_TOKENS):
        raise invalid(name, f"expected 1 to {_MAX_TOKENS}, got {text[:20]!r}")
    return int(text)
