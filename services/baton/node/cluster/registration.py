"""Keeps a node registered with every router: describes it once, then reports load, links and outcomes.

Each router must know all nodes to place requests on them, so each has a stream of its own.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable, Mapping, MutableMapping, Sequence
from functools import partial
from typing import NamedTuple, TypeAlias

import grpc

from baton.discovery.watch import AddressSource
from baton.engine.events import EngineLoad
from baton.internal.v1 import node_pb2, router_service_pb2
from baton.internal.v1.router_service_pb2_grpc import RouterServiceStub
from baton.node.cluster.replicas import Replicas, stay_connected
from baton.v1.generation_pb2 import PlacementSummary
from baton.wire.quantities import duration_from_seconds, seconds_from_duration, tier_rates_to_proto

log = logging.getLogger(__name__)
_MAX_QUEUED_REPORTS = 1024
_GATHER_SECONDS = 0.05
"""Time for which an outcome waits for others: each message costs the router a wake-up."""
_GATHER_LOAD_SECONDS = 0.1
"""Time for which a change of the queue waits for others."""
_STATUS_SECONDS = 1.0
"""Time for the status of a call whose writing has failed; a bug in the writer has none to wait for."""
_MAX_ACCEPTED_PLACEMENTS = 1024
"""Kept while a router does not ask for them; what is older has expired there."""
RegisterCall: TypeAlias = (
    "grpc.aio.StreamStreamCall[router_service_pb2.RegisterRequest, router_service_pb2.RegisterResponse]"
)
Peers = Mapping[str, router_service_pb2.Peer]
"""Nodes that may be called, by node id."""


class RouterRegistration:
    """One node's stream to the router, made again whenever it breaks.

    Args:
        router_address: host:port of the router.
        node: Who the node is.
        load: Returns what it is doing; called for every report.
        report_seconds: Longest time between reports.
        on_peers: Called with all other nodes of the model when they change.
        on_accepted: Called when the router has accepted the node.
        links: Those measured so far, by the node that they come from; told whenever the node registers. Who shares them
            between registrations drops those of nodes that have gone: one router that has just started knows few.
        transfer_key: By which the node checks what routers grant; empty: it takes part in no transfer.
    """

    def __init__(
        self,
        router_address: str,
        node: node_pb2.NodeDescription,
        load: Callable[[], node_pb2.LoadReport],
        *,
        report_seconds: float,
        on_peers: Callable[[Peers], None] = lambda _peers: None,
        on_accepted: Callable[[], None] = lambda: None,
        links: MutableMapping[str, node_pb2.LinkMeasurement] | None = None,
        transfer_key: bytes = b"",
    ) -> None:
        self._router_address = router_address
        self._greeting = router_service_pb2.RegisterRequest(node=node, transfer_key=transfer_key)
        self._load, self._report_seconds = load, report_seconds
        self._on_peers, self._on_accepted = on_peers, on_accepted
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
        """Register and report until cancelled."""
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
                log.info("registered router=%s node=%s", self._router_address, self._greeting.node.node_id)
                wanted_seconds = seconds_from_duration(response.registered.report_interval)
                self._report_seconds = min(self._report_seconds, wanted_seconds or self._report_seconds)
                self._on_accepted()
            else:
                self._on_peers({peer.node_id: peer for peer in response.peers.nodes})

    async def _write_reports(self, call: RegisterCall) -> None:
        await call.write(self._greeting)
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
                report = router_service_pb2.RegisterRequest(load=self._load())
            if report.HasField("load"):
                load_due = self._next_load_due()
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


class _Member(NamedTuple):
    """A registration with one router, and the placements whose acceptance that router has still to be told of."""

    registration: RouterRegistration
    accepted_placement_ids: deque[str]


class RouterRegistrations:
    """A node's streams to all routers.

    Every router gets every report. The node's peers are those that any router names: one that has just started knows
    few nodes. `load` is given the placements that the node has accepted since a router was last told. Without a
    `transfer_key` it takes part in no transfer.
    """

    def __init__(
        self,
        routers: AddressSource,
        node: node_pb2.NodeDescription,
        load: Callable[[Sequence[str]], node_pb2.LoadReport],
        *,
        report_seconds: float,
        on_peers: Callable[[Peers], None] = lambda _peers: None,
        transfer_key: bytes = b"",
    ) -> None:
        self._node, self._transfer_key = node, transfer_key
        self._load, self._report_seconds = load, report_seconds
        self._on_peers = on_peers
        self._peers_of: dict[str, Peers] = {}
        self._links: dict[str, node_pb2.LinkMeasurement] = {}
        self._gathering: asyncio.TimerHandle | None = None
        self.accepted = asyncio.Event()
        """Set when a router has accepted the node for the first time: it is part of the cluster."""
        self._replicas = Replicas(routers, self._member, lambda member: member.registration.run(), on_gone=self._forget)

    def accept_placements(self, placement_ids: Sequence[str]) -> None:
        """Report the changed load in a moment, with the placements that it counts: routers stop assuming them."""
        for member in self._replicas.members.values():
            member.accepted_placement_ids.extend(placement_ids)
        if self._gathering is None:
            loop = asyncio.get_running_loop()
            self._gathering = loop.call_later(_GATHER_LOAD_SECONDS, self._report_gathered)

    def report_outcome(self, summary: PlacementSummary) -> None:
        """Tell the routers what became of a placed request, and in a moment that the load is without it."""
        for member in self._replicas.members.values():
            member.registration.report_outcome(summary)
        self.accept_placements(())

    def report_link(self, link: node_pb2.LinkMeasurement) -> None:
        """Tell the routers how fast a link is; every router that comes later is told as well."""
        self._links[link.from_node_id] = link
        for member in self._replicas.members.values():
            member.registration.report_link(link)

    def report_load(self) -> None:
        """Report the load now rather than at the next turn."""
        for member in self._replicas.members.values():
            member.registration.report_load()

    def _report_gathered(self) -> None:
        self._gathering = None
        self.report_load()

    async def run(self) -> None:
        """Register and report until cancelled."""
        await self._replicas.run()

    def _member(self, address: str) -> _Member:
        accepted: deque[str] = deque(maxlen=_MAX_ACCEPTED_PLACEMENTS)
        registration = RouterRegistration(
            address,
            self._node,
            lambda: self._load(_drained(accepted)),
            report_seconds=self._report_seconds,
            on_peers=partial(self._take_peers, address),
            on_accepted=self.accepted.set,
            links=self._links,
            transfer_key=self._transfer_key,
        )
        return _Member(registration, accepted)

    def _take_peers(self, address: str, peers: Peers) -> None:
        self._peers_of[address] = peers
        self._tell_peers()

    def _forget(self, address: str) -> None:
        if self._peers_of.pop(address, None) is not None and self._peers_of:
            self._tell_peers()

    def _tell_peers(self) -> None:
        peers = merged_peers(self._peers_of.values())
        for node_id in self._links.keys() - peers.keys():
            del self._links[node_id]
        self._on_peers(peers)


def merged_peers(several: Iterable[Peers]) -> Peers:
    """Return all peers that any router names; of two processes of one name, the one that began later."""
    merged: dict[str, router_service_pb2.Peer] = {}
    for peers in several:
        for node_id, peer in peers.items():
            if node_id not in merged or peer.epoch > merged[node_id].epoch:
                merged[node_id] = peer
    return merged


def _drained(accepted: deque[str]) -> Sequence[str]:
    placement_ids = list(accepted)
    accepted.clear()
    return placement_ids


def load_message(
    load: EngineLoad,
    *,
    is_draining: bool,
    accepted_placement_ids: Sequence[str],
    system: node_pb2.SystemSample | None,
    age_seconds: float = 0.0,
) -> node_pb2.LoadReport:
    """Return what a node was doing so many seconds ago."""
    return node_pb2.LoadReport(
        age=duration_from_seconds(age_seconds),
        waiting_request_count=load.num_waiting,
        running_request_count=load.num_running,
        pending_prompt_token_count=load.num_pending_prompt_tokens,
        free_block_count=load.num_available_blocks,
        wanted_block_count=load.num_wanted_blocks,
        mean_context_token_count=load.mean_context_tokens,
        step_count=load.num_steps,
        is_draining=is_draining,
        accepted_placement_ids=accepted_placement_ids,
        system=system,
        tier_rates=tier_rates_to_proto(load.tier_rates),
        is_sparing_memory=load.is_sparing_memory,
        decoding_request_count=load.num_decoding,
        export_request_count=load.num_exports,
        queued_prompts=[
            node_pb2.QueuedPrompt(
                placement_id=each.placement_id,
                done_token_count=each.num_done_tokens,
                remaining_token_count=each.num_left_tokens,
            )
            for each in load.queued_prompts
        ],
        landing_bytes_per_second=load.landing.bytes_per_second,
        landing_byte_count=load.landing.num_bytes,
        reading_bytes_per_second=load.reading_bytes_per_second,
    )
