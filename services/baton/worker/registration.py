"""Keeps a node registered with the router: describes it once, then reports load, links and outcomes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, MutableMapping
from typing import TypeAlias

import grpc

from baton.rpc.wire_time import seconds_from_duration
from baton.v1 import node_pb2, router_service_pb2
from baton.v1.generation_pb2 import PlacementSummary
from baton.v1.router_service_pb2_grpc import RouterServiceStub
from baton.worker.reconnect import stay_connected

log = logging.getLogger(__name__)

_MAX_QUEUED_REPORTS = 1024
_GATHER_SECONDS = 0.05
"""Time for which an outcome waits for others: each message costs the router a wake-up."""
_STATUS_SECONDS = 1.0
"""Time for the status of a call whose writing has failed; a bug in the writer has none to wait for."""

RegisterCall: TypeAlias = (
    "grpc.aio.StreamStreamCall[router_service_pb2.RegisterRequest, router_service_pb2.RegisterResponse]"
)
Peers = Mapping[str, router_service_pb2.Peer]
"""Nodes that may be called, by node id."""


class Registration:
    """One node's stream to the router, made again whenever it breaks.

    Args:
        router_address: host:port of the router.
        node: Who the node is.
        load: Returns what it is doing; called for every report.
        report_seconds: Longest time between reports.
        on_peers: Called with all other nodes of the model when they change.
        links: Those measured so far, by the node that they come from; told whenever the node registers. Who shares them
            between registrations drops those of nodes that have gone: one router that has just started knows few.
    """

    def __init__(
        self,
        router_address: str,
        node: node_pb2.NodeDescription,
        load: Callable[[], node_pb2.LoadReport],
        *,
        report_seconds: float,
        on_peers: Callable[[Peers], None] = lambda _peers: None,
        links: MutableMapping[str, node_pb2.LinkMeasurement] | None = None,
    ) -> None:
        self._router_address = router_address
        self._node = node
        self._load = load
        self._report_seconds = report_seconds
        self._on_peers = on_peers
        self._reports: asyncio.Queue[router_service_pb2.RegisterRequest] = asyncio.Queue(_MAX_QUEUED_REPORTS)
        self._links = {} if links is None else links
        self._outcomes: list[PlacementSummary] = []

    def report_outcome(self, summary: PlacementSummary) -> None:
        """Tell the router what became of a placed request, in a moment, together with others."""
        if not self._outcomes:
            asyncio.get_running_loop().call_later(_GATHER_SECONDS, self._report_outcomes)
        self._outcomes.append(summary)

    def report_link(self, link: node_pb2.LinkMeasurement) -> None:
        """Tell the router how fast a link is; every router that comes later is told as well."""
        self._links[link.from_node_id] = link
        self._report(router_service_pb2.RegisterRequest(link=link))

    def report_load(self) -> None:
        """Report the load now rather than at the next turn."""
        self._report(router_service_pb2.RegisterRequest(load=self._load()))

    async def run(self) -> None:
        """Register and report until cancelled.

        Raises:
            SupersededError: If a newer process has taken this node's name.
        """
        await stay_connected("router", self._router_address, self._register)

    async def _register(self, channel: grpc.aio.Channel) -> None:
        stub = RouterServiceStub(channel)  # type: ignore[no-untyped-call]
        call = stub.Register()
        # A task of this method's own: gRPC would go on asking for reports of a call that has ended, and lose one.
        writing = asyncio.create_task(self._write_reports(call))
        reading = asyncio.create_task(self._read_notices(call))
        try:
            await asyncio.wait({writing, reading}, return_when=asyncio.FIRST_COMPLETED)
            # A call that has ended fails both; its status is the reader's to tell.
            await asyncio.wait({reading}, timeout=_STATUS_SECONDS)
            await (reading if reading.done() else writing)
        finally:
            for task in (writing, reading):
                task.cancel()
            await asyncio.gather(writing, reading, return_exceptions=True)

    async def _read_notices(self, call: RegisterCall) -> None:
        async for response in call:
            if response.HasField("registered"):
                log.info("registered router=%s node=%s", self._router_address, self._node.node_id)
                wanted_seconds = seconds_from_duration(response.registered.report_interval)
                self._report_seconds = min(self._report_seconds, wanted_seconds or self._report_seconds)
            else:
                self._on_peers({peer.node_id: peer for peer in response.peers.nodes})

    async def _write_reports(self, call: RegisterCall) -> None:
        await call.write(router_service_pb2.RegisterRequest(node=self._node))
        await call.write(router_service_pb2.RegisterRequest(load=self._load()))
        for link in list(self._links.values()):
            await call.write(router_service_pb2.RegisterRequest(link=link))
        load_due = self._next_load_due()
        while True:
            try:
                async with asyncio.timeout_at(load_due):
                    report = await self._reports.get()
            except TimeoutError:
                # By its own clock: outcomes that come without a pause must not put the load report off.
                load_due = self._next_load_due()
                report = router_service_pb2.RegisterRequest(load=self._load())
            await call.write(report)

    def _next_load_due(self) -> float:
        return asyncio.get_running_loop().time() + self._report_seconds

    def _report_outcomes(self) -> None:
        outcomes, self._outcomes = self._outcomes, []
        self._report(router_service_pb2.RegisterRequest(outcomes=router_service_pb2.Outcomes(outcomes=outcomes)))

    def _report(self, request: router_service_pb2.RegisterRequest) -> None:
        if self._reports.full():  # the router is away: what is oldest is worth least
            self._reports.get_nowait()
        self._reports.put_nowait(request)
