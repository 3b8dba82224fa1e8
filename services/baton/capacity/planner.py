"""Which node should prefill, which decode, and what fits in memory: a plan for a whole cluster. Pure.

Every node is taken to be a worker, which can do both; what it does today is no constraint. The pair for one request of
the given size, on an idle cluster, is the cheapest of `baton.capacity.placement`; each further node takes the part in
which it serves that request soonest.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from baton.capacity import cost
from baton.capacity.cost import ModelShape, NodeProfile
from baton.capacity.placement import Candidate, place
from baton.capacity.snapshot import (
    ClusterSnapshot,
    Link,
    NodeLoad,
    NodeRole,
    NodeSnapshot,
    PlacementRequest,
    can_decode,
    can_prefill,
)

PlannedRole = Literal["prefill", "decode", "both", "none"]
"""both: decodes, and computes its prompts itself. none: it can serve nothing of the model."""

_BLOCK_TOKENS = 16
PASS_TOKENS = 512
"""Positions of a pass that a plan counts with: the default of workers' max_step_tokens."""


@dataclass(frozen=True, slots=True)
class PlanNode:
    """One live node."""

    node_id: str
    role: NodeRole
    """What it serves today."""
    profile: NodeProfile
    usable_bytes: int
    """Memory for weights, KV and workspace, what its worker holds today included."""
    unusable_reason: str = ""
    """Why it can take no part (draining, silent); empty if it can."""


@dataclass(frozen=True, slots=True)
class NodePart:
    """One node's part in a plan."""

    node_id: str
    role: PlannedRole
    """What it should serve."""
    prefill_seconds: float
    """To compute the prompt there."""
    step_seconds: float
    """One decode step there, alone, with prompt and half of the output as context."""
    free_bytes: int
    """Memory beside weights and workspace; negative: they do not fit."""
    context_tokens: int
    """Tokens whose KV fits, over all requests, 0 or more."""
    reason: str = ""
    """Why it serves nothing; empty if it does."""


@dataclass(frozen=True, slots=True)
class ClusterPlan:
    """The parts of all nodes, and what they give one request."""

    parts: tuple[NodePart, ...]
    """In the order of the nodes."""
    choice: Candidate | None
    """The pair that serves the request soonest; None: no node can."""
    alone: Candidate | None
    """The best single node; None: no node can."""
    today: Candidate | None = None
    """The best that nodes can do in the roles that they have; None: none can."""


def plan_cluster(
    nodes: Sequence[PlanNode],
    shape: ModelShape,
    request: PlacementRequest,
    links: Mapping[tuple[str, str], Link],
    default_link: Link,
) -> ClusterPlan:
    """Return who should do what. O(nodes²).

    Args:
        nodes: All that are live.
        shape: Size of the model.
        request: A typical request; what it asks for beside its size is ignored.
        links: By (sending node, receiving node); where only the other direction is known, that counts.
        default_link: Declared figures for pairs that nobody has measured.
    """
    sized = PlacementRequest(request.num_prompt_tokens, request.max_tokens)
    known = {(left, right): link for (right, left), link in links.items()} | dict(links)
    able = [node for node in nodes if not why_not(node, shape)]
    candidates = priced_candidates(able, shape, sized, known, default_link)
    choice = candidates[0] if candidates and candidates[0].estimate else None
    alone = next((each for each in candidates if each.is_local and each.estimate), None)
    today = {node.node_id: node.role for node in able}
    as_is = next((each for each in candidates if each.estimate and _is_possible(each, today)), None)
    roles = {node.node_id: _role(node.node_id, choice, candidates) for node in able}
    return ClusterPlan(
        tuple(_part(node, shape, sized, roles.get(node.node_id, "none")) for node in nodes), choice, alone, as_is
    )


def priced_candidates(
    nodes: Sequence[PlanNode],
    shape: ModelShape,
    request: PlacementRequest,
    links: Mapping[tuple[str, str], Link],
    default_link: Link,
) -> tuple[Candidate, ...]:
    """Return every node alone and with every other one, cheapest first."""
    workers = tuple(_snapshot(node, shape) for node in nodes)
    snapshot = ClusterSnapshot(workers, default_link, links, float(request.max_tokens))
    return place(snapshot, request).candidates


def _is_possible(candidate: Candidate, roles: Mapping[str, NodeRole]) -> bool:
    is_able = candidate.is_local or can_prefill(roles[candidate.prefill_node_id])
    return is_able and can_decode(roles[candidate.decode_node_id])


def _snapshot(node: PlanNode, shape: ModelShape) -> NodeSnapshot:
    num_blocks = _context_tokens(node, shape) // _BLOCK_TOKENS
    load = NodeLoad(num_free_blocks=num_blocks)
    return NodeSnapshot(node.node_id, "worker", shape, node.profile, num_blocks, _BLOCK_TOKENS, 1, load)


def _role(node_id: str, choice: Candidate | None, candidates: Sequence[Candidate]) -> PlannedRole:
    """Return the part in which a node serves the request soonest, beside the chosen pair."""
    if choice is None:
        return "none"
    if choice.decode_node_id == node_id:
        return "both" if choice.is_local else "decode"
    if choice.prefill_node_id == node_id:
        return "prefill"
    for candidate in candidates:
        if candidate.estimate and candidate.prefill_node_id == node_id:
            if candidate.decode_node_id == choice.decode_node_id:
                return "prefill"
        elif candidate.estimate and candidate.decode_node_id == node_id:
            if candidate.is_local:
                return "both"
            if candidate.prefill_node_id == choice.prefill_node_id:
                return "decode"
    return "none"


def _part(node: PlanNode, shape: ModelShape, request: PlacementRequest, role: PlannedRole) -> NodePart:
    context = request.num_prompt_tokens + request.max_tokens / 2
    num_needed, num_fitting = request.num_prompt_tokens + request.max_tokens, _context_tokens(node, shape)
    reason = why_not(node, shape)
    if not reason and role == "none":
        reason = f"{num_needed} tokens of KV do not fit" if num_fitting < num_needed else "context is too short"
    return NodePart(
        node.node_id,
        role,
        cost.prefill_seconds(shape, node.profile, 0, request.num_prompt_tokens),
        cost.step_seconds(shape, node.profile, 1, context),
        _free_bytes(node, shape),
        num_fitting,
        reason,
    )


def why_not(node: PlanNode, shape: ModelShape) -> str:
    """Return why a node can take no part; empty if it can."""
    if node.unusable_reason:
        return node.unusable_reason
    missing = -_free_bytes(node, shape)
    return f"weights do not fit: {missing / 1e9:.3g} GB are missing" if missing > 0 else ""


def _context_tokens(node: PlanNode, shape: ModelShape) -> int:
    return max(0, _free_bytes(node, shape)) // shape.kv_bytes_per_token


def _free_bytes(node: PlanNode, shape: ModelShape) -> int:
    return node.usable_bytes - shape.weight_bytes - shape.workspace_bytes(PASS_TOKENS)
