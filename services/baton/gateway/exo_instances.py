"""POST /instance: from a preview that a client sends back to the pin that it stands for."""

from __future__ import annotations

import re
from collections.abc import Mapping

import msgspec

from baton.capacity.snapshot import NodePair
from baton.gateway.instances import Instance
from baton.gateway.openai_errors import ApiError, refused
from baton.gateway.openai_schema import decode_json
from baton.v1.node_pb2 import NODE_ROLE_DECODE, NodeDescription

_INSTANCE_ID = re.compile(r"[A-Za-z0-9-]{1,64}")
_ASSIGNMENTS = "instance.shardAssignments"


class ShardAssignments(msgspec.Struct, rename="camel"):
    """Which nodes an instance has; other fields follow from them and are not read."""

    model_id: str
    node_to_runner: dict[str, str]


class InstanceView(msgspec.Struct, rename="camel"):
    """What the tag of an instance holds."""

    instance_id: str
    shard_assignments: ShardAssignments


class InstanceBody(msgspec.Struct, forbid_unknown_fields=True):
    """The body: an instance as GET /instance/previews shows it, under the one key that is its tag."""

    instance: dict[str, InstanceView]


def decode_view(data: bytes) -> InstanceView:
    """Return the one instance of a body.

    Raises:
        ApiError: 400, naming what is missing.
    """
    body = decode_json(data, InstanceBody)
    if len(body.instance) != 1:
        raise _refused("instance", f"expected one key, its tag, got {len(body.instance)}")
    (view,) = body.instance.values()
    if not _INSTANCE_ID.fullmatch(view.instance_id):
        raise _refused("instance.instanceId", "expected 1 to 64 letters, digits or dashes")
    return view


def instance_of(view: InstanceView, nodes: Mapping[str, NodeDescription]) -> Instance:
    """Return the instance that a view shows.

    Args:
        view: From a body.
        nodes: Those that the router lists, by id.

    Raises:
        ApiError: 400, naming the nodes that do not exist or cannot work together.
    """
    assignments = view.shard_assignments
    return Instance(view.instance_id, assignments.model_id, _pair(assignments, nodes))


def _pair(assignments: ShardAssignments, nodes: Mapping[str, NodeDescription]) -> NodePair:
    roles: dict[bool, list[str]] = {True: [], False: []}
    for node_id in assignments.node_to_runner:
        node = nodes.get(node_id)
        if node is None or node.model_id != assignments.model_id:
            problem = f"no node {node_id[:63]!r} serves {assignments.model_id[:200]!r}"
            raise _refused(f"{_ASSIGNMENTS}.nodeToRunner", problem)
        roles[node.role == NODE_ROLE_DECODE].append(node_id)
    decode, prefill = roles[True], roles[False]
    if len(decode) != 1 or len(prefill) > 1:
        problem = f"expected one decode node and at most one prefill node, got {len(decode)} and {len(prefill)}"
        raise _refused(f"{_ASSIGNMENTS}.nodeToRunner", problem)
    return NodePair(decode[0], prefill[0] if prefill else "")


def _refused(param: str, problem: str) -> ApiError:
    return refused(param, f"Invalid value for `{param}`: {problem}", code="invalid_value")
