"""Keeps a node registered with every router: each must know all nodes to place requests on them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import NamedTuple

from baton.discovery.source import AddressSource
from baton.v1 import node_pb2, router_service_pb2
from baton.v1.generation_pb2 import PlacementSummary
from baton.worker.registration import Peers, Registration
from baton.worker.replicas import Replicas

_MAX_ACCEPTED_PLACEMENTS = 1024
"""Kept while a router does not ask for them; what is older has expired there."""


class _Member(NamedTuple):
    """A registration, and what it alone has still to say."""

    registration: Registration
    accepted_placement_ids: deque[str]


class Registrations:
    """A node's streams to all routers.

    Every router gets every report. The node's peers are those that any router names: one that has just started knows
    few nodes.

    Args:
        routers: Knows the routers' addresses.
        node: Who the node is.
        load: Returns what it is doing, given the placements that it has accepted since a router was last told.
        report_seconds: Longest time between reports.
        on_peers: Called with all other nodes of the model when they change.
    """

    def __init__(
        self,
        routers: AddressSource,
        node: node_pb2.NodeDescription,
        load: Callable[[Sequence[str]], node_pb2.LoadReport],
        *,
        report_seconds: float,
        on_peers: Callable[[Peers], None] = lambda _peers: None,
    ) -> None:
        self._node = node
        self._load = load
        self._report_seconds = report_seconds
        self._on_peers = on_peers
        self._peers_of: dict[str, Peers] = {}
        self._links: dict[str, node_pb2.LinkMeasurement] = {}
        self._replicas = Replicas(routers, self._member, lambda member: member.registration.run(), on_gone=self._forget)

    def accept_placement(self, placement_id: str) -> None:
        """Note that a placed request has come in, so that its router stops counting it twice."""
        for member in self._replicas:
            member.accepted_placement_ids.append(placement_id)

    def report_outcome(self, summary: PlacementSummary) -> None:
        """Tell the routers what became of a placed request."""
        for member in self._replicas:
            member.registration.report_outcome(summary)

    def report_link(self, link: node_pb2.LinkMeasurement) -> None:
        """Tell the routers how fast a link is; every router that comes later is told as well."""
        self._links[link.from_node_id] = link
        for member in self._replicas:
            member.registration.report_link(link)

    def report_load(self) -> None:
        """Report the load now rather than at the next turn."""
        for member in self._replicas:
            member.registration.report_load()

    async def run(self) -> None:
        """Register and report until cancelled.

        Raises:
            ExceptionGroup: Of a SupersededError, if a newer process has taken this node's name.
        """
        await self._replicas.run()

    def _member(self, address: str) -> _Member:
        accepted: deque[str] = deque(maxlen=_MAX_ACCEPTED_PLACEMENTS)
        registration = Registration(
            address,
            self._node,
            lambda: self._load(_drained(accepted)),
            report_seconds=self._report_seconds,
            on_peers=partial(self._take_peers, address),
            links=self._links,
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
