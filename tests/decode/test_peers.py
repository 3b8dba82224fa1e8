"""The links from other nodes are probed, whatever breaks."""

from __future__ import annotations

import asyncio

import grpc
import pytest

from baton.decode import peers
from baton.internal.v1 import node_pb2, router_service_pb2
from baton.kv_transport.kv_services import KvStub


def test_a_probe_that_breaks_leaves_the_node_and_its_other_links_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A channel may be closed between two calls of one probe, which grpc takes for misuse."""
    measured: list[str] = []

    async def measure(_stub: KvStub, node_id: str, _num_bytes: int) -> node_pb2.LinkMeasurement:
        if node_id == "broken":
            raise grpc.aio.UsageError("Channel is closed.")
        return node_pb2.LinkMeasurement(from_node_id=node_id)

    monkeypatch.setattr(peers, "measure_link", measure)

    async def run() -> None:
        is_measured = asyncio.Event()

        def report(link: node_pb2.LinkMeasurement) -> None:
            measured.append(link.from_node_id)
            is_measured.set()

        peer_set = peers.PeerSet(1, report)
        following = asyncio.create_task(peer_set.run())
        for node_id in ("broken", "sound"):
            peer_set.update({node_id: router_service_pb2.Peer(node_id=node_id, address="127.0.0.1:1")})
        await is_measured.wait()
        following.cancel()
        await asyncio.wait({following})

    asyncio.run(asyncio.wait_for(run(), 20))

    assert measured == ["sound"]


def test_a_probe_that_fails_is_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A node that has just registered may not answer yet; without a measurement its link would stay a guess."""
    num_probes = 0

    async def measure(_stub: KvStub, node_id: str, _num_bytes: int) -> node_pb2.LinkMeasurement:
        nonlocal num_probes
        num_probes += 1
        if num_probes < 3:
            raise TimeoutError
        return node_pb2.LinkMeasurement(from_node_id=node_id)

    monkeypatch.setattr(peers, "measure_link", measure)
    monkeypatch.setattr(peers, "_PROBE_PAUSE_SECONDS", 0.0)

    async def run() -> None:
        is_measured = asyncio.Event()
        peer_set = peers.PeerSet(1, lambda _link: is_measured.set())
        following = asyncio.create_task(peer_set.run())
        peer_set.update({"slow": router_service_pb2.Peer(node_id="slow", address="127.0.0.1:1")})
        await is_measured.wait()
        following.cancel()
        await asyncio.wait({following})

    asyncio.run(asyncio.wait_for(run(), 20))

    assert num_probes == 3
