"""`baton nodes`: what the router knows of every node: speed, load, links, and how good its predictions have been."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table

from baton.capacity.placement_table import format_seconds
from baton.cli.cluster.router_call import CALL_SECONDS, DEFAULT_ROUTER, RouterOption, ask_router
from baton.cli.terminal.console import make_console
from baton.cli.terminal.tables import format_bytes, format_rate, print_table, titled_table
from baton.internal.v1 import node_pb2, router_service_pb2
from baton.wire.node_roles import parts_words

_ZONE_LABEL = "topology.kubernetes.io/zone"


def command(router: RouterOption = DEFAULT_ROUTER) -> None:
    """Print the nodes with their profiles, load and links."""
    answer = ask_router(
        router, lambda stub: stub.ListNodes(router_service_pb2.ListNodesRequest(), timeout=CALL_SECONDS)
    )
    console = make_console()
    if not answer.nodes:
        console.print(f"The router at {router} knows no nodes.")
        return
    for table in (nodes_table(answer.nodes), speeds_table(answer.nodes), pools_table(answer.nodes)):
        print_table(console, table)
    for table in (devices_table(answer.nodes), places_table(answer.nodes), links_table(answer.nodes)):
        if table.row_count:
            print_table(console, table)


def nodes_table(states: Sequence[router_service_pb2.NodeState]) -> Table:
    """Return one row per node: which parts it may play, what it is, and where."""
    table = titled_table("nodes", "node", "part", "engine", "device", "address")
    for state in states:
        node = state.node
        table.add_row(node.node_id, parts_words(node.role), node.engine, node.device, node.address)
    return table


def speeds_table(states: Sequence[router_service_pb2.NodeState]) -> Table:
    """Return one row per node; overhead is that of a step, calibration is measured / predicted time, 1 is perfect."""
    table = titled_table("speed", "node", "prefill", "decode", "overhead", "calibration p/d")
    for state in states:
        profile = state.node.profile
        table.add_row(
            state.node.node_id,
            format_rate(profile.prefill_flops, "FLOP/s"),
            format_rate(profile.decode_bytes_per_second, "B/s"),
            format_seconds(profile.step_overhead.ToNanoseconds() / 1e9),
            f"{_calibration(state.prefill_calibration)} / {_calibration(state.decode_calibration)}",
        )
    return table


def pools_table(states: Sequence[router_service_pb2.NodeState]) -> Table:
    """Return one row per node: what it does, what of its pool is free, and why that is as large as it is."""
    table = titled_table("load and pools of KV", "node", "load", "free blocks", "why so many")
    for state in states:
        node, load = state.node, state.load
        table.add_row(
            node.node_id,
            state.unusable_reason or _work(load),
            f"{load.free_block_count}/{node.block_count} × {node.block_token_count}",  # noqa: RUF001 - tokens of each
            node.block_count_cause or "-",
        )
    return table


def devices_table(states: Sequence[router_service_pb2.NodeState]) -> Table:
    """Return one row per device on which several nodes compute: they take each other's time."""
    table = titled_table("shared devices", "device", "shared by")
    sharers: dict[str, list[str]] = {}
    for state in states:
        sharers.setdefault(state.node.device_id, []).append(state.node.node_id)
    for device_id, node_ids in sorted(sharers.items()):
        if device_id and len(node_ids) > 1:
            table.add_row(device_id, ", ".join(sorted(node_ids)))
    return table


def places_table(states: Sequence[router_service_pb2.NodeState]) -> Table:
    """Return one row per node in Kubernetes: the node under it, and what of it is told."""
    table = titled_table("places", "node", "on", "zone", "given", "allocatable", "taints")
    for state in states:
        place = state.node.place
        if place.node_name:
            given = ", ".join(f"{count} {resource}" for resource, count in sorted(place.accelerator_counts.items()))
            allocatable = ", ".join(f"{quantity} {name}" for name, quantity in sorted(place.allocatable.items()))
            zone = place.labels.get(_ZONE_LABEL, "")
            cells = (zone, given, allocatable, ", ".join(place.taints))
            table.add_row(state.node.node_id, place.node_name, *(cell or "-" for cell in cells))
    return table


def links_table(states: Sequence[router_service_pb2.NodeState]) -> Table:
    """Return one row per measured link."""
    table = titled_table("links", "from", "to", "rate", "round trip")
    for state in states:
        for link in state.links:
            round_trip = format_seconds(link.round_trip.ToNanoseconds() / 1e9)
            table.add_row(link.from_node_id, state.node.node_id, f"{format_bytes(link.bytes_per_second)}/s", round_trip)
    return table


def _work(load: node_pb2.LoadReport) -> str:
    """Return how many requests a node has, and the prompts of how many it computes for nodes that decode them."""
    exports = f", {load.export_request_count} for others" if load.export_request_count else ""
    return f"{load.running_request_count} run, {load.waiting_request_count} wait{exports}"


def _calibration(ratio: float) -> str:
    return f"{ratio:.2f}" if ratio else "-"
