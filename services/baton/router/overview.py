"""The nodes as `ListNodes` shows them."""

from __future__ import annotations

from dataclasses import replace

from baton.router.nodes import Node
from baton.router.state import RouterState
from baton.router.wire import description_to_proto, load_to_proto
from baton.rpc.wire_time import duration_from_seconds
from baton.v1 import node_pb2, router_service_pb2


def list_nodes(state: RouterState) -> router_service_pb2.ListNodesResponse:
    """Return every node with its corrected profile, last report, links and calibration."""
    return router_service_pb2.ListNodesResponse(nodes=[_node_state(state, node) for node in state.nodes])


def _node_state(state: RouterState, node: Node) -> router_service_pb2.NodeState:
    description = node.description
    shown = replace(description, profile=state.corrected_profile(description))
    return router_service_pb2.NodeState(
        node=description_to_proto(shown),
        load=load_to_proto(node.report) if node.report else None,
        links=_links(state, node),
        prefill_calibration=state.prefill_calibration.reported(description.node_id),
        decode_calibration=state.decode_calibration.reported(description.node_id),
    )


def _links(state: RouterState, decoder: Node) -> list[node_pb2.LinkMeasurement]:
    """Return the measured links into a decode node, rates as corrected since."""
    if decoder.description.role != "decode":
        return []
    links = []
    for sender in state.nodes.of_model(decoder.description.model_id):
        link = state.link(sender, decoder)
        if sender is not decoder and link.is_measured:
            links.append(
                node_pb2.LinkMeasurement(
                    from_node_id=sender.description.node_id,
                    bytes_per_second=link.bytes_per_second,
                    round_trip=duration_from_seconds(link.round_trip_seconds),
                )
            )
    return links
