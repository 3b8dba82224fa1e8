"""The links from prefill nodes: their rate from two timed calls, and probes that break."""

from __future__ import annotations

import asyncio
from typing import cast

import grpc
import pytest

from baton.decode import peers
from baton.decode.peers import link_bytes_per_second
from baton.kv_transport.kv_services import KvStub
from baton.v1 import node_pb2, router_service_pb2


def test_a_round_trip_is_no_transfer() -> None:
    """What an empty call takes is taken off."""
    assert link_bytes_per_second(1000, 1.25, 0.25) == 1000.0


@pytest.mark.parametrize("round_trip_seconds", [0.9, 1.0, 7.0])
def test_a_slow_empty_call_does_not_make_a_link_infinitely_fast(round_trip_seconds: float) -> None:
    """At most twice the rate that was seen."""
    assert link_bytes_per_second(1000, 1.0, round_trip_seconds) == 2000.0


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


@pytest.mark.parametrize("stream_seconds", [[0.04, 0.02, 0.03, 0.05, 0.02], [0.6]])
def test_a_link_is_as_quick_as_it_was_once(monkeypatch: pytest.MonkeyPatch, stream_seconds: list[float]) -> None:
    """What delays one probe is the machine; a slow link is not burdened with a second stream."""
    now, calls = 0.0, iter([0.5, 0.004, 0.002, 0.003, 0.002, 0.008, *stream_seconds])

    async def probe(_stub: KvStub, num_bytes: int) -> float:
        nonlocal now
        seconds = next(calls)
        now += seconds if num_bytes else 0.0
        return seconds

    monkeypatch.setattr(peers, "_timed_probe", probe)
    monkeypatch.setattr(peers.time, "perf_counter", lambda: now)

    link = asyncio.run(peers.measure_link(cast(KvStub, None), "p", 1_000_000))

    assert link.bytes_per_second == pytest.approx(1e6 / (min(stream_seconds) - 0.002))
    assert link.round_trip.nanos == 2_000_000
    assert list(calls) == []
