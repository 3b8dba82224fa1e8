"""`baton plan --nodes`: which live node should prefill, which decode, and what fits in its memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from rich import box
from rich.table import Table

from baton.capacity.cost import ModelShape
from baton.capacity.placement import Candidate
from baton.capacity.placement_table import format_seconds
from baton.capacity.planner import PASS_TOKENS, ClusterPlan, PlanNode, plan_cluster
from baton.capacity.reference_models import REFERENCE_MODELS
from baton.capacity.snapshot import DECLARED_LINK, Link, PlacementRequest
from baton.cli.terminal.console import make_console
from baton.cli.terminal.tables import format_bytes, format_rate, print_table
from baton.errors import NotFoundError
from baton.internal.v1 import router_service_pb2
from baton.wire.node_roles import parts_words, role_from_proto
from baton.wire.quantities import profile_from_proto, seconds_from_duration, shape_from_proto


def print_cluster_plan(states: Sequence[router_service_pb2.NodeState], model: str, request: PlacementRequest) -> None:
    """Print the plan for a model that is served, or one of the reference models.

    Raises:
        NotFoundError: If there are no nodes, or the model is neither.
    """
    shape = planned_shape(states, model)
    plan = plan_states(states, shape, request)
    console = make_console()
    print_table(console, cluster_table(states, plan, shape))
    for sentence in sentences(plan, shape, model, request):
        console.print(sentence, highlight=False)


def planned_shape(states: Sequence[router_service_pb2.NodeState], model: str) -> ModelShape:
    """Return the shape of a model by its served name, else by that of a reference model.

    Raises:
        NotFoundError: If there is none.
    """
    for state in states:
        if state.node.model_id == model:
            shape, own = shape_from_proto(state.node.model_shape), state.node.model_context_token_count
            return replace(shape, max_context_tokens=own) if own else shape
    if model in REFERENCE_MODELS:
        return REFERENCE_MODELS[model]
    raise NotFoundError(f"model {model!r} is neither served nor one of {', '.join(REFERENCE_MODELS)}")


def plan_states(
    states: Sequence[router_service_pb2.NodeState], shape: ModelShape, request: PlacementRequest
) -> ClusterPlan:
    """Return the plan for nodes as a router lists them."""
    links = {
        (link.from_node_id, state.node.node_id): Link(
            link.bytes_per_second, seconds_from_duration(link.round_trip), is_measured=True
        )
        for state in states
        for link in state.links
    }
    return plan_cluster([plan_node(state) for state in states], shape, request, links, DECLARED_LINK)


def plan_node(state: router_service_pb2.NodeState) -> PlanNode:
    """Return a node with the memory that it has for a model.

    That is what its worker holds, and what is free where its engine computes: of the accelerator's own memory as its
    driver says, of the machine's where they share it or there is no accelerator.
    """
    node, shape = state.node, state.node.model_shape
    held = shape.weight_byte_count + node.block_count * node.block_token_count * shape.kv_byte_count_per_token
    is_machine_memory = node.engine != "torch" or node.device.startswith("cpu")
    system = state.load.system
    free = system.available_memory_byte_count if is_machine_memory else system.available_gpu_memory_byte_count
    reason = "draining" if state.load.is_draining else ""
    return PlanNode(
        node.node_id,
        role_from_proto(node.role, field="node.role"),
        profile_from_proto(node.profile),
        held + free,
        reason,
    )


def cluster_table(states: Sequence[router_service_pb2.NodeState], plan: ClusterPlan, shape: ModelShape) -> Table:
    """Return one row per node: which parts it may play, and which it should; what serves the request soonest is bold.

    The context is that of one sequence, as the model or the memory bounds it; tokens are those of all sequences.
    """
    reasons = ["note"] if any(part.reason for part in plan.parts) else []
    headings = ("node", "may", "plan", "prefill", "step", "KV room", "tokens", "context", *reasons)
    table = Table(*headings, box=box.SIMPLE_HEAD, collapse_padding=True, pad_edge=False)
    chosen = {plan.choice.decode_node_id, plan.choice.prefill_node_id} if plan.choice else set()
    for state, part in zip(states, plan.parts, strict=True):
        table.add_row(
            part.node_id,
            parts_words(state.node.role),
            "-" if part.role == "none" else part.role,
            format_seconds(part.prefill_seconds),
            format_seconds(part.step_seconds),
            format_bytes(part.free_bytes),
            format_rate(part.context_tokens, ""),
            str(min(part.context_tokens, shape.max_context_tokens)),
            *([part.reason] if reasons else []),
            style="bold green" if part.node_id in chosen else None,
        )
    return table


def sentences(plan: ClusterPlan, shape: ModelShape, model: str, request: PlacementRequest) -> list[str]:
    """Return what the plan gives one request, and what a single node would."""
    size = f"{request.num_prompt_tokens} prompt tokens and {request.max_tokens} new ones"
    weights, kv = format_bytes(shape.weight_bytes), format_bytes(shape.kv_bytes_per_token)
    workspace = format_bytes(shape.workspace_bytes(PASS_TOKENS))
    first = f"{model}: {weights} of weights, {kv} of KV a token, {workspace} of workspace."
    if plan.choice is None:
        return [first, f"No node can serve {size}."]
    lines = [first, f"{size}: {_described(plan.choice)}."]
    if plan.alone and not plan.choice.is_local:
        lines.append(f"Without a second node: {_described(plan.alone)}.")
    if plan.today is None:
        lines.append("As nodes are pinned, none can serve it.")
    elif plan.today != plan.choice:
        lines.append(f"As nodes are pinned: {_described(plan.today)}.")
    return lines


def _described(candidate: Candidate) -> str:
    assert candidate.estimate is not None
    total = format_seconds(candidate.estimate.total_seconds)
    first = format_seconds(candidate.estimate.time_to_first_token_seconds)
    if candidate.is_local:
        return f"{candidate.decode_node_id} alone, first token after {first}, all after {total}"
    declared = ", link rate declared" if candidate.is_link_declared else ""
    transfer = format_seconds(candidate.estimate.transfer_seconds)
    exposed = format_seconds(candidate.estimate.exposed_seconds)
    return (
        f"{candidate.prefill_node_id} prefills, {candidate.decode_node_id} decodes, first token after {first}, "
        f"all after {total}; KV takes {transfer} on the link, of which {exposed} shows{declared}"
    )
