"""The nodes that this node may call: their channels, and how fast the links from them are."""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import TypeVar

import grpc

from baton.decode.kv_stream.prefill_stream import PrefillSource, TransportChoice
from baton.decode.kv_stream.receive_budget import ReceiveBudget
from baton.decode.measurement import LinkMeter
from baton.errors import BatonError, ConfigurationError, NotFoundError
from baton.grpc_sockets.flow_control import ReceiveTurns
from baton.internal.v1 import node_pb2, router_service_pb2
from baton.kv.stream import MOST_IDLE_BYTES, StagingPool
from baton.kv_transport.fast_channel import FastChannel, limits_for
from baton.kv_transport.kv_services import BlockStub, KvStub
from baton.kv_transport.link_probe import measure_link
from baton.node.cluster.registration import Peers
from baton.rpc.channel import open_channel
from baton.security.tls import TlsIdentity, current_identity
from baton.shm.lender import Lender
from baton.telemetry.metrics import Metrics

log = logging.getLogger(__name__)
_T = TypeVar("_T")
_PROBE_PAUSE_SECONDS = 1.0
_LONGEST_PROBE_PAUSE_SECONDS = 60.0
RENEWAL_LOOK_SECONDS = 30.0
"""Between looks whether this node's certificate was renewed: gRPC's channels keep that with which they were made."""
LINGER_SECONDS = 60.0
"""Time that running streams get when their node leaves the router's list: a router that has just started knows none."""


class PeerSet:
    """Channels to the nodes that the router has named; no other node can be called.

    Links are measured as soon as nodes appear, one at a time, each with `probe_bytes`, 0: not at all; prefill nodes of
    this host may write into memory of `lender`, which `run` starts and closes. When a node leaves the router's list its
    streams get `linger_seconds`.
    """

    def __init__(
        self,
        probe_bytes: int,
        report_link: Callable[[node_pb2.LinkMeasurement], None],
        *,
        budget: ReceiveBudget,
        choice: TransportChoice = "auto",
        lender: Lender | None = None,
        metrics: Metrics | None = None,
        linger_seconds: float = LINGER_SECONDS,
    ) -> None:
        self._choice = choice
        self._lender = lender if choice in ("auto", "shared") else None
        self._metrics = metrics or Metrics()
        self._probe_bytes, self._report_link = probe_bytes, report_link
        self._linger_seconds = linger_seconds
        self._peers: dict[str, router_service_pb2.Peer] = {}
        self._channels: dict[str, grpc.aio.Channel] = {}
        self._fast: dict[str, FastChannel] = {}
        self._meters = defaultdict[str, LinkMeter](LinkMeter)
        self._staging = StagingPool(min(MOST_IDLE_BYTES, budget.idle_bytes))
        self._limits, self._turns = limits_for(budget.frame_bytes), ReceiveTurns()
        self._changes: asyncio.Queue[Peers] = asyncio.Queue(64)
        self._probe_turn = asyncio.Lock()

    def update(self, peers: Peers) -> None:
        """Take the router's list."""
        if self._changes.full():
            self._changes.get_nowait()
        self._changes.put_nowait(peers)

    def stub(self, node_id: str) -> KvStub:
        """Return the stub of a prefill node; raise NotFoundError if the router has not named it."""
        return KvStub(_named(self._channels, node_id))

    def blocks(self, node_id: str) -> BlockStub:
        """Return the stub of a node's prefix cache; raise NotFoundError if the router has not named it."""
        return BlockStub(_named(self._channels, node_id))

    def address(self, node_id: str) -> str:
        """Return host:port of a node; empty if the router does not name it."""
        peer = self._peers.get(node_id)
        return peer.address if peer else ""

    def has(self, node_id: str) -> bool:
        """Return whether the router names a node."""
        return node_id in self._peers

    def source(self, node_id: str) -> PrefillSource:
        """Return where to take KV from that a prefill node computes; raise NotFoundError if no router has named it."""
        stub, link = self.stub(node_id), self._meters[node_id]
        return PrefillSource(stub, self._fast.get(node_id), self._lender, self._choice, self._metrics, link)

    async def run(self) -> None:
        """Follow the router's list until cancelled; measure the link from each node that appears."""
        if self._lender is not None:
            self._lender.start()
        try:
            async with asyncio.TaskGroup() as tasks:
                if (identity := current_identity()) is not None:
                    tasks.create_task(self._follow_renewals(identity, tasks))
                while True:
                    peers = await self._changes.get()
                    for closing in self._drop_missing(peers):
                        tasks.create_task(self._close_later(*closing))
                    for peer in self._open_appeared(peers):
                        if self._probe_bytes:
                            tasks.create_task(self._probe(peer))
        finally:
            if self._lender is not None:
                self._lender.close()
            for fast in self._fast.values():
                fast.close()
            for channel in self._channels.values():
                await channel.close()

    def _drop_missing(self, peers: Peers) -> list[tuple[grpc.aio.Channel, FastChannel | None]]:
        """Forget the nodes that have gone or are other processes than before; return their channels, still open."""
        gone = [
            node_id
            for node_id, known in self._peers.items()
            if node_id not in peers or peers[node_id].epoch != known.epoch
        ]
        for node_id in gone:
            del self._peers[node_id]
            self._meters.pop(node_id, None)
        return [(self._channels.pop(node_id), self._fast.pop(node_id, None)) for node_id in gone]

    def _open_appeared(self, peers: Peers) -> list[router_service_pb2.Peer]:
        """Open channels to the nodes that have none; return these nodes."""
        appeared = [peer for node_id, peer in peers.items() if node_id not in self._peers]
        for peer in appeared:
            # A connection of its own: tokens and other streams never wait behind this one's frames.
            self._channels[peer.node_id] = open_channel(peer.address, is_dedicated=True)
            if peer.fast_address and self._choice != "grpc":
                self._fast[peer.node_id] = FastChannel(peer.fast_address, self._staging, self._limits, self._turns)
            self._peers[peer.node_id] = peer
        return appeared

    async def _follow_renewals(self, identity: TlsIdentity, tasks: asyncio.TaskGroup) -> None:
        """Open new channels when the certificate has been replaced: when the first one ends, none could reconnect."""
        stamp = identity.stamp()
        while True:
            await asyncio.sleep(RENEWAL_LOOK_SECONDS)
            try:
                if (present := identity.stamp()) == stamp:
                    continue
                opened = {key: open_channel(self._peers[key].address, is_dedicated=True) for key in self._channels}
            except (ConfigurationError, OSError) as error:  # the files are being replaced
                log.warning("peers_kept cause=%r", str(error))
                continue
            stamp = present
            log.info("peers_reopened cause=certificate_renewed peers=%d", len(opened))
            for channel in self._channels.values():
                tasks.create_task(self._close_later(channel, None))
            self._channels = opened

    async def _close_later(self, channel: grpc.aio.Channel, fast: FastChannel | None) -> None:
        try:
            await asyncio.sleep(self._linger_seconds)
        finally:
            if fast is not None:
                fast.close()
            await channel.close()

    async def _probe(self, peer: router_service_pb2.Peer) -> None:
        """Measure the link from a node while it is there, again after a growing pause if that fails or KV has come."""
        best, pause_seconds = -1.0, _PROBE_PAUSE_SECONDS
        while self._peers.get(peer.node_id) is peer:
            before = self._num_received_bytes()
            link = await self._probed(peer)
            if link is not None:
                if link.bytes_per_second > best:
                    best = link.bytes_per_second
                    self._report_link(link)
                if before == self._num_received_bytes() or pause_seconds >= _LONGEST_PROBE_PAUSE_SECONDS:
                    return
            await asyncio.sleep(pause_seconds)
            pause_seconds = min(2 * pause_seconds, _LONGEST_PROBE_PAUSE_SECONDS)

    def _num_received_bytes(self) -> int:
        return sum(meter.num_bytes for meter in self._meters.values())

    async def _probed(self, peer: router_service_pb2.Peer) -> node_pb2.LinkMeasurement | None:
        is_neighbour = peer.role in (node_pb2.NODE_ROLE_DECODE, node_pb2.NODE_ROLE_WORKER)
        try:
            return await self._measure(peer.node_id, is_neighbour=is_neighbour)
        except (grpc.aio.AioRpcError, NotFoundError, TimeoutError) as error:
            log.warning("link_probe_failed peer=%s cause=%s", peer.node_id, error)
        except Exception:  # the edge of the task: a link that cannot be measured must not end the node
            log.exception("link_probe_failed peer=%s", peer.node_id)
        return None

    async def _measure(self, node_id: str, *, is_neighbour: bool) -> node_pb2.LinkMeasurement:
        """Measure a link by the way that KV will come, and open it: gRPC's library may carry half of what it does."""
        if (fast := self._fast.get(node_id)) is not None:
            try:
                return await measure_link(fast, node_id, self._probe_bytes, self._probe_turn)
            except BatonError as error:  # then KV comes by gRPC too
                log.info("fast_path_not_probed peer=%s cause=%s", node_id, error)
        stub = self.blocks(node_id) if is_neighbour else self.stub(node_id)
        return await measure_link(stub, node_id, self._probe_bytes, self._probe_turn)


def _named(known: Mapping[str, _T], node_id: str) -> _T:
    """Return what is known of a node that the router has named, or raise NotFoundError."""
    if node_id not in known:
        raise NotFoundError(f"node {node_id!r} is not known here", reason="NODE_NOT_FOUND")
    return known[node_id]
