"""The nodes as `ListNodes` shows them.

RouterService: from wire, domain, to wire.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import TypeAlias

import grpc

from baton.router.nodes import Node
from baton.router.placer import Placer
from baton.router.proto import (
    description_to_proto,
    load_to_proto,
    peers_to_proto,
    placed_to_proto,
    query_from_proto,
    registered_to_proto,
    reports_from_proto,
)
from baton.router.registration import NodeRegistrations, Registered, RegistrationSession, Report
from baton.router.state import RouterState
from baton.v1 import node_pb2, router_service_pb2
from baton.v1 import router_service_pb2 as messages
from baton.v1 import router_service_pb2_grpc as service
from baton.wire.durations import duration_from_seconds


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


Context: TypeAlias = "grpc.aio.ServicerContext[object, object]"


class RouterServicer(service.RouterServiceServicer):
    """Serves one router's state, on one event loop."""

    def __init__(
        self, state: RouterState, placer: Placer, registrations: NodeRegistrations, *, report_interval_seconds: float
    ) -> None:
        self._state = state
        self._placer = placer
        self._registrations = registrations
        self._report_interval_seconds = report_interval_seconds

    async def Register(  # noqa: N802 - named by the proto
        self, request_iterator: AsyncIterator[messages.RegisterRequest], _context: Context
    ) -> AsyncIterator[messages.RegisterResponse]:
        """Keep a node registered until either side ends the stream."""
        session = RegistrationSession()
        # No TaskGroup: this is a generator, and a group would cancel whoever awaits it between two responses.
        reader = asyncio.create_task(self._registrations.read(session, _reports(request_iterator)))
        try:
            async for notice in session.notices():
                if isinstance(notice, Registered):
                    yield registered_to_proto(self._report_interval_seconds)
                else:
                    yield peers_to_proto(notice)
        finally:
            self._registrations.drop(session)
            reader.cancel()
            await asyncio.gather(reader, return_exceptions=True)

    async def Place(self, request: messages.PlaceRequest, _context: Context) -> messages.PlaceResponse:  # noqa: N802
        """Choose where a request runs."""
        query = query_from_proto(request)
        placed = await self._placer.place(query)
        return placed_to_proto(placed)

    async def ListNodes(  # noqa: N802 - named by the proto
        self, _request: messages.ListNodesRequest, _context: Context
    ) -> messages.ListNodesResponse:
        """List the nodes."""
        return list_nodes(self._state)


async def _reports(requests: AsyncIterator[messages.RegisterRequest]) -> AsyncIterator[Report]:
    async for request in requests:
        for report in reports_from_proto(request):
            yield report
