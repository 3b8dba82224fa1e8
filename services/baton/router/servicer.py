"""RouterService: from wire, domain, to wire."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import TypeAlias

import grpc

from baton.router.overview import list_nodes
from baton.router.placer import Placer
from baton.router.registration import Registered, Registrations, Report, Session
from baton.router.state import RouterState
from baton.router.wire import peers_to_proto, placed_to_proto, query_from_proto, registered_to_proto, reports_from_proto
from baton.v1 import router_service_pb2 as messages
from baton.v1 import router_service_pb2_grpc as service

Context: TypeAlias = "grpc.aio.ServicerContext[object, object]"


class RouterServicer(service.RouterServiceServicer):
    """Serves one router's state, on one event loop."""

    def __init__(
        self, state: RouterState, placer: Placer, registrations: Registrations, *, report_interval_seconds: float
    ) -> None:
        self._state = state
        self._placer = placer
        self._registrations = registrations
        self._report_interval_seconds = report_interval_seconds

    async def Register(  # noqa: N802 - named by the proto
        self, request_iterator: AsyncIterator[messages.RegisterRequest], _context: Context
    ) -> AsyncIterator[messages.RegisterResponse]:
        """Keep a node registered until either side ends the stream."""
        session = Session()
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
