"""The cluster as exo's API shows it, from what the router knows of its nodes. What no node reports is left out."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from baton.gateway.api.exo.instances import Instance
from baton.internal.v1.node_pb2 import NodeDescription, SystemSample
from baton.internal.v1.router_service_pb2 import NodeState
from baton.wire.node_roles import role_word
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
    """Return GET /models, of names and longest sequences.

    The size on disk is 0, which tells clients that there is nothing to download.
    """
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
            edge = {
                "bytesPerSecond": link.bytes_per_second,
                "roundTripSeconds": seconds_from_duration(link.round_trip),
            }
            connections.setdefault(link.from_node_id, {})[state.node.node_id] = [edge]
    return connections


def _memory(sample: SystemSample) -> dict[str, dict[str, int]]:
    return {name: {"inBytes": getattr(sample, field)} for name, field in _MEMORY.items() if sample.HasField(field)}


def _system(sample: SystemSample) -> dict[str, float]:
    values = {name: getattr(sample, field) for name, field in _SENSORS.items() if sample.HasField(field)}
    return {name: value for name, value in values.items() if math.isfinite(value)}
