"""The links from other nodes are probed, whatever breaks."""

from __future__ import annotations

import asyncio
from pathlib import Path

import grpc
import pytest
import trustme

from baton.decode import peers
from baton.errors import ConfigurationError
from baton.internal.v1 import node_pb2, router_service_pb2
from baton.kv_transport.fast_channel import FastChannel, FastPathError
from baton.kv_transport.kv_services import KvStub
from baton.kv_transport.link_probe import Prober
from baton.rpc.channel import open_channel
from baton.security.tls import secured_by
from decode.pair import usual_budget
from security.identities import identity


def test_a_probe_that_breaks_leaves_the_node_and_its_other_links_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A channel may be closed between two calls of one probe, which grpc takes for misuse."""
    measured: list[str] = []

    async def measure(_stub: KvStub, node_id: str, _num_bytes: int, _turn: asyncio.Lock) -> node_pb2.LinkMeasurement:
        if node_id == "broken":
            raise grpc.aio.UsageError("Channel is closed.")
        return node_pb2.LinkMeasurement(from_node_id=node_id)

    monkeypatch.setattr(peers, "measure_link", measure)

    async def run() -> None:
        is_measured = asyncio.Event()

        def report(link: node_pb2.LinkMeasurement) -> None:
            measured.append(link.from_node_id)
            is_measured.set()

        peer_set = peers.PeerSet(1, report, budget=usual_budget())
        following = asyncio.create_task(peer_set.run())
        for node_id in ("broken", "sound"):
            peer_set.update({node_id: router_service_pb2.Peer(node_id=node_id, address="127.0.0.1:1")})
        await is_measured.wait()
        following.cancel()
        await asyncio.wait({following})

    asyncio.run(asyncio.wait_for(run(), 20))

    assert measured == ["sound"]


@pytest.mark.parametrize("is_served", [True, False])
def test_a_link_is_measured_by_the_way_of_its_kv(monkeypatch: pytest.MonkeyPatch, *, is_served: bool) -> None:
    """By the fast path where there is one; a node that has none any more, or not yet, is measured by gRPC."""
    ways: list[object] = []

    async def measure(way: Prober, node_id: str, _num_bytes: int, _turn: asyncio.Lock) -> node_pb2.LinkMeasurement:
        ways.append(type(way))
        if isinstance(way, FastChannel) and not is_served:
            raise FastPathError("UNIMPLEMENTED", reason="REFUSED")
        return node_pb2.LinkMeasurement(from_node_id=node_id)

    monkeypatch.setattr(peers, "measure_link", measure)

    async def run() -> None:
        is_measured = asyncio.Event()
        peer_set = peers.PeerSet(1, lambda _link: is_measured.set(), budget=usual_budget())
        following = asyncio.create_task(peer_set.run())
        peer = router_service_pb2.Peer(node_id="p", address="127.0.0.1:1", fast_address="127.0.0.1:1")
        peer_set.update({"p": peer})
        await is_measured.wait()
        following.cancel()
        await asyncio.wait({following})

    asyncio.run(asyncio.wait_for(run(), 20))

    assert ways == ([FastChannel] if is_served else [FastChannel, KvStub])


def test_a_probe_that_fails_is_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A node that has just registered may not answer yet; without a measurement its link would stay a guess."""
    num_probes = 0

    async def measure(_stub: KvStub, node_id: str, _num_bytes: int, _turn: asyncio.Lock) -> node_pb2.LinkMeasurement:
        nonlocal num_probes
        num_probes += 1
        if num_probes < 3:
            raise TimeoutError
        return node_pb2.LinkMeasurement(from_node_id=node_id)

    monkeypatch.setattr(peers, "measure_link", measure)
    monkeypatch.setattr(peers, "_PROBE_PAUSE_SECONDS", 0.0)

    async def run() -> None:
        is_measured = asyncio.Event()
        peer_set = peers.PeerSet(1, lambda _link: is_measured.set(), budget=usual_budget())
        following = asyncio.create_task(peer_set.run())
        peer_set.update({"slow": router_service_pb2.Peer(node_id="slow", address="127.0.0.1:1")})
        await is_measured.wait()
        following.cancel()
        await asyncio.wait({following})

    asyncio.run(asyncio.wait_for(run(), 20))

    assert num_probes == 3


@pytest.mark.parametrize(("num_busy", "num_made"), [(2, 3), (100, 7)])
def test_a_probe_beside_kv_is_made_again(monkeypatch: pytest.MonkeyPatch, num_busy: int, num_made: int) -> None:
    """It tells too little of the link; where KV never stops coming, seven times. The best is told."""
    probed, told = list[float](), list[float]()
    peer_set = peers.PeerSet(1, lambda link: told.append(link.bytes_per_second), budget=usual_budget())

    async def measure(_stub: KvStub, node_id: str, _num_bytes: int, _turn: asyncio.Lock) -> node_pb2.LinkMeasurement:
        peer_set._meters["other"].num_bytes += len(probed) < num_busy
        probed.append((2.0, 1.0, 3.0)[len(probed) % 3])
        return node_pb2.LinkMeasurement(from_node_id=node_id, bytes_per_second=probed[-1])

    monkeypatch.setattr(peers, "measure_link", measure)
    monkeypatch.setattr(peers, "_PROBE_PAUSE_SECONDS", 0.001)
    monkeypatch.setattr(peers, "_LONGEST_PROBE_PAUSE_SECONDS", 0.06)

    async def run() -> None:
        following = asyncio.create_task(peer_set.run())
        peer_set.update({"p": router_service_pb2.Peer(node_id="p", address="127.0.0.1:1")})
        await asyncio.sleep(0.5)
        following.cancel()
        await asyncio.wait({following})

    asyncio.run(asyncio.wait_for(run(), 20))

    assert (len(probed), told) == (num_made, [2.0, 3.0])


def test_channels_are_opened_again_with_a_renewed_certificate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that kept the first certificate could not reconnect once that has ended. While files are missing it stays."""
    who = identity(tmp_path, trustme.CA(), common_name="mac-1")
    monkeypatch.setattr(peers, "RENEWAL_LOOK_SECONDS", 0.001)
    opened, has_failed = asyncio.Queue[str](), asyncio.Event()

    def open_noted(address: str, *, is_dedicated: bool) -> grpc.aio.Channel:
        try:
            channel = open_channel(address, is_dedicated=is_dedicated)
        except ConfigurationError:
            has_failed.set()
            raise
        opened.put_nowait(address)
        return channel

    monkeypatch.setattr(peers, "open_channel", open_noted)

    async def run() -> None:
        with secured_by(who):
            peer_set = peers.PeerSet(0, lambda _link: None, budget=usual_budget(), linger_seconds=0)
            following = asyncio.create_task(peer_set.run())
        peer_set.update({"p": router_service_pb2.Peer(node_id="p", address="127.0.0.1:1")})
        await opened.get()
        key = who.key_file.read_bytes()
        who.key_file.unlink()
        await has_failed.wait()
        assert opened.empty()
        who.key_file.write_bytes(key)

        assert await opened.get() == "127.0.0.1:1"
        following.cancel()
        await asyncio.wait({following})

    asyncio.run(asyncio.wait_for(run(), 20))
