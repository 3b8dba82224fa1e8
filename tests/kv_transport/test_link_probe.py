"""The rate of a link: from two timed calls, of bytes that nobody keeps."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any, cast

import grpc
import pytest

from baton.errors import OverloadedError
from baton.internal.v1.block_service_pb2_grpc import BlockServiceServicer
from baton.internal.v1.prefill_service_pb2_grpc import PrefillServiceServicer
from baton.kv.stream import StagingPool
from baton.kv_transport import link_probe
from baton.kv_transport.fast_channel import FastChannel
from baton.kv_transport.kv_services import BlockStub, FastServer, KvStub, add_block_service, add_prefill_service
from baton.kv_transport.link_probe import Prober, link_bytes_per_second, measure_link, probe_sizes
from baton.rpc.error_interceptor import ErrorInterceptor


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


@contextlib.asynccontextmanager
async def way_to_a_node(kind: str) -> AsyncIterator[Prober]:
    """Yield a way to a node that serves its KV so."""
    if kind == "fast":
        server = FastServer("127.0.0.1", 0, lambda _request, _call: None)
        channel = FastChannel(f"127.0.0.1:{server.start()}", StagingPool(1 << 20))
        yield channel
        channel.close()
        await server.drain(0)
        return
    aio_server = grpc.aio.server(interceptors=[ErrorInterceptor()])
    if kind == "prefill":
        add_prefill_service(PrefillServiceServicer(), aio_server)
    else:
        add_block_service(BlockServiceServicer(), aio_server)
    port = aio_server.add_insecure_port("127.0.0.1:0")
    await aio_server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as aio_channel:
        yield (KvStub if kind == "prefill" else BlockStub)(aio_channel)
    await aio_server.stop(None)


@pytest.mark.parametrize("kind", ["prefill", "blocks", "fast"])
def test_a_link_is_measured_by_the_service_that_is_there(kind: str) -> None:
    """Of a node that computes prompts, and of one that has blocks alone; the empty calls tell the round trip."""

    async def run() -> None:
        async with way_to_a_node(kind) as way:
            link = await measure_link(way, "p", 3_000_000)
            messages = [message async for message in way.probe(3_000_000, 10.0)]
        assert link.from_node_id == "p"
        assert link.bytes_per_second > 0
        assert len(messages) == 3
        if kind != "fast":  # which tells nobody what it throws away
            assert sum(len(cast(Any, message).payload) for message in messages) == 3_000_000

    asyncio.run(run())


@pytest.mark.parametrize("kind", ["prefill", "blocks", "fast"])
def test_a_node_sends_one_probe_at_a_time(kind: str) -> None:
    """Two at once would share its network card: the second is refused until the first ends, even by being left."""

    async def run() -> None:
        async with way_to_a_node(kind) as way:
            first = way.probe(256 << 20, 10.0)
            await anext(aiter(first))
            with pytest.raises((OverloadedError, grpc.aio.AioRpcError), match="ask again soon"):
                [None async for _ in way.probe(1, 10.0)]
            assert [None async for _ in way.probe(0, 10.0)] == []
            waiting = asyncio.create_task(measure_link(way, "p", 1_000_000))
            await asyncio.sleep(2 * link_probe._BUSY_PAUSE_SECONDS)
            assert not waiting.done()
            if isinstance(first, grpc.aio.Call):
                first.cancel()
            else:
                await cast(AsyncGenerator[object, None], first).aclose()
            link = await asyncio.wait_for(waiting, 5)
        assert link.bytes_per_second > 0

    asyncio.run(run())


def test_a_receiver_measures_its_links_in_turn() -> None:
    """Streams from several nodes at once would share the card of the one that measures."""
    num_running = most_running = 0

    class Way:
        async def probe(self, num_bytes: int, timeout_seconds: float) -> AsyncIterator[object]:
            nonlocal num_running, most_running
            num_running += num_bytes > 0
            most_running = max(most_running, num_running)
            await asyncio.sleep(0.001)
            num_running -= num_bytes > 0
            yield None

    async def run() -> None:
        turn = asyncio.Lock()
        await asyncio.gather(*(measure_link(Way(), "p", 1000, turn) for _ in range(3)))

    asyncio.run(run())

    assert most_running == 1
