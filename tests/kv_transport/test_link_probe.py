"""The rate of a link: from two timed calls, of bytes that nobody keeps."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import grpc
import pytest

from baton.internal.v1.block_service_pb2_grpc import BlockServiceServicer
from baton.internal.v1.prefill_service_pb2_grpc import PrefillServiceServicer
from baton.kv_transport import link_probe
from baton.kv_transport.kv_services import BlockStub, KvStub, add_block_service, add_prefill_service
from baton.kv_transport.link_probe import link_bytes_per_second, measure_link, probe_sizes


def test_a_probe_in_single_bytes_takes_no_memory_for_its_plan() -> None:
    """The largest probe in the smallest messages is 268 million of them."""
    sizes = probe_sizes(2**28, 1)

    assert [next(sizes) for _ in range(3)] == [1, 1, 1]


def test_a_round_trip_is_no_transfer() -> None:
    """What an empty call takes is taken off."""
    assert link_bytes_per_second(1000, 1.25, 0.25) == 1000.0


@pytest.mark.parametrize("round_trip_seconds", [0.9, 1.0, 7.0])
def test_a_slow_empty_call_does_not_make_a_link_infinitely_fast(round_trip_seconds: float) -> None:
    """At most twice the rate that was seen."""
    assert link_bytes_per_second(1000, 1.0, round_trip_seconds) == 2000.0


@pytest.mark.parametrize("stream_seconds", [[0.04, 0.02, 0.03, 0.05, 0.02], [0.6]])
def test_a_link_is_as_quick_as_it_was_once(monkeypatch: pytest.MonkeyPatch, stream_seconds: list[float]) -> None:
    """What delays one probe is the machine; a slow link is not burdened with a second stream."""
    now, calls = 0.0, iter([0.5, 0.004, 0.002, 0.003, 0.002, 0.008, *stream_seconds])

    async def probe(_stub: KvStub, num_bytes: int) -> float:
        nonlocal now
        seconds = next(calls)
        now += seconds if num_bytes else 0.0
        return seconds

    monkeypatch.setattr(link_probe, "_timed_probe", probe)
    monkeypatch.setattr(link_probe.time, "perf_counter", lambda: now)

    link = asyncio.run(measure_link(cast(KvStub, None), "p", 1_000_000))

    assert link.bytes_per_second == pytest.approx(1e6 / (min(stream_seconds) - 0.002))
    assert link.round_trip.nanos == 2_000_000
    assert list(calls) == []


@pytest.mark.parametrize("kind", ["prefill", "blocks"])
def test_a_link_is_measured_by_the_service_that_is_there(kind: str) -> None:
    """Of a node that computes prompts, and of one that has blocks alone; the empty calls tell the round trip."""
    is_prefill = kind == "prefill"

    async def run() -> int:
        server = grpc.aio.server()
        if is_prefill:
            add_prefill_service(PrefillServiceServicer(), server)
        else:
            add_block_service(BlockServiceServicer(), server)
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            stub = (KvStub if is_prefill else BlockStub)(channel)
            link = await measure_link(stub, "p", 3_000_000)
            payloads = [cast(Any, message).payload async for message in stub.probe(3_000_000, 10.0)]
        await server.stop(None)
        assert link.from_node_id == "p"
        assert link.bytes_per_second > 0
        return sum(map(len, payloads))

    assert asyncio.run(run()) == 3_000_000
