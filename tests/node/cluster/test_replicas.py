"""A node and several routers and cache indexes, which come and go."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace

import pytest

from baton.cache_index.server import build_server
from baton.cache_index.settings import CacheIndexSettings
from baton.discovery.watch import OnChange
from baton.internal.v1 import cache_index_service_pb2, node_pb2, router_service_pb2
from baton.internal.v1.cache_index_service_pb2_grpc import CacheIndexServiceStub
from baton.internal.v1.router_service_pb2_grpc import RouterServiceStub
from baton.kv.hashing import BlockEvents, BlockHash
from baton.node.cluster.publication import CacheIndexPublications
from baton.node.cluster.registration import Peers, RouterRegistrations, merged_peers
from baton.node.cluster.replicas import Replicas
from baton.router.server import running_router
from baton.router.settings import RouterSettings
from baton.rpc.channel import open_channel
from baton.v1.generation_pb2 import PlacementSummary
from router.samples import DGX, MAC, description_to_proto

TIMEOUT_SECONDS = 60.0

_DECODE, _PREFILL = description_to_proto(MAC), description_to_proto(DGX)


class Movable:
    """Addresses that the test changes."""

    def __init__(self, *addresses: str) -> None:
        self._addresses = frozenset(addresses)
        self._on_change: OnChange = lambda _: None

    def set(self, *addresses: str) -> None:
        """Change them."""
        self._addresses = frozenset(addresses)
        self._on_change(self._addresses)

    async def __call__(self, on_change: OnChange) -> None:
        """Say them until cancelled."""
        self._on_change = on_change
        on_change(self._addresses)
        await asyncio.Event().wait()


class Loads:
    """What a node says to routers, and what it was asked with."""

    def __init__(self) -> None:
        self.accepted: list[Sequence[str]] = []
        self._asked = asyncio.Event()

    def __call__(self, accepted_placement_ids: Sequence[str]) -> node_pb2.LoadReport:
        """Return a report."""
        self.accepted.append(tuple(accepted_placement_ids))
        self._asked.set()
        return node_pb2.LoadReport(accepted_placement_ids=accepted_placement_ids)

    async def until(self, is_true: Callable[[], bool]) -> None:
        """Return once something is true of the reports."""
        async with asyncio.timeout(TIMEOUT_SECONDS):
            while not is_true():
                self._asked.clear()
                await self._asked.wait()


def test_a_node_is_known_to_every_router_that_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """It registers with those that appear, and leaves those that stay away, without a restart."""
    monkeypatch.setitem(Replicas.__init__.__kwdefaults__, "linger_seconds", 0.2)

    async def run() -> None:
        async with AsyncExitStack() as stack:
            first, second = [await stack.enter_async_context(_router()) for _ in range(2)]
            routers = Movable(first)
            node = RouterRegistrations(routers, _DECODE, Loads(), report_seconds=0.1)
            async with _running(node.run()):
                await _until(first, {"mac"})
                routers.set(first, second)
                await _until(second, {"mac"})
                routers.set(second)
                await _until(first, set())
                await _until(second, {"mac"})

    asyncio.run(run())


def test_every_router_is_told_of_every_accepted_placement_once() -> None:
    """A router stops counting a placement when it hears of it; the other routers must not take that word away."""

    async def run() -> None:
        async with _router() as first, _router() as second:
            loads = Loads()
            node = RouterRegistrations(Movable(first, second), _DECODE, loads, report_seconds=0.05)
            async with _running(node.run()):
                for address in (first, second):
                    await _until(address, {"mac"})
                node.accept_placements(["p-1"])
                await loads.until(lambda: loads.accepted.count(("p-1",)) == 2)
                num_reports = len(loads.accepted)
                await loads.until(lambda: len(loads.accepted) > num_reports + 6)

            assert loads.accepted.count(("p-1",)) == 2

    asyncio.run(run())


def test_a_change_of_the_queue_is_reported_soon_and_changes_together_once() -> None:
    """A router places by the queue: it does not wait for the next report to hear of it."""

    async def run() -> None:
        async with _router(report_seconds=1e6) as router:
            loads = Loads()
            node = RouterRegistrations(Movable(router), _DECODE, loads, report_seconds=1e6)
            async with _running(node.run()):
                await _until(router, {"mac"})
                await loads.until(lambda: len(loads.accepted) == 1)
                for name in ("p-1", "p-2"):
                    node.accept_placements([name])
                await loads.until(lambda: len(loads.accepted) > 1)

                assert loads.accepted == [(), ("p-1", "p-2")]

    asyncio.run(run())


def test_a_load_without_a_request_that_has_ended_is_reported_soon() -> None:
    """Else the next one is priced beside a batch that is gone."""

    async def run() -> None:
        async with _router(report_seconds=1e6) as router:
            loads = Loads()
            node = RouterRegistrations(Movable(router), _DECODE, loads, report_seconds=1e6)
            async with _running(node.run()):
                await _until(router, {"mac"})
                await loads.until(lambda: len(loads.accepted) == 1)
                node.report_outcome(PlacementSummary(placement_id="p-1"))
                await loads.until(lambda: len(loads.accepted) > 1)

                assert loads.accepted == [(), ()]

    asyncio.run(run())


def test_a_router_that_comes_later_is_told_of_links() -> None:
    """Links are measured once; whoever places must know them."""

    async def run() -> None:
        async with _router() as first, _router() as second:
            routers, peers = Movable(first), asyncio.Queue[Peers]()
            prefill = RouterRegistrations(Movable(first, second), _PREFILL, Loads(), report_seconds=0.1)
            node = RouterRegistrations(routers, _DECODE, Loads(), report_seconds=0.1, on_peers=peers.put_nowait)
            async with _running(prefill.run()), _running(node.run()):
                async with asyncio.timeout(TIMEOUT_SECONDS):
                    while "dgx" not in await peers.get():
                        pass
                node.report_link(node_pb2.LinkMeasurement(from_node_id="dgx", bytes_per_second=5e9))
                routers.set(first, second)
                await _until(second, {"mac", "dgx"}, lambda state: state.node.node_id != "mac" or len(state.links) == 1)

    asyncio.run(run())


def test_links_from_nodes_that_have_gone_are_forgotten() -> None:
    """When no router names the node any more; a router that comes later hears of the others."""

    async def run() -> None:
        async with _router() as first, _router() as second:
            routers, peers = Movable(first), asyncio.Queue[Peers]()
            going, again = (
                RouterRegistrations(Movable(router), _PREFILL, Loads(), report_seconds=0.1)
                for router in (first, second)
            )
            staying = RouterRegistrations(
                Movable(first, second), description_to_proto(replace(DGX, node_id="other")), Loads(), report_seconds=0.1
            )
            node = RouterRegistrations(routers, _DECODE, Loads(), report_seconds=0.1, on_peers=peers.put_nowait)
            async with _running(node.run()), _running(staying.run()), asyncio.timeout(TIMEOUT_SECONDS):
                async with _running(going.run()):
                    while set(await peers.get()) != {"dgx", "other"}:
                        pass
                    for node_id in ("dgx", "other"):
                        node.report_link(node_pb2.LinkMeasurement(from_node_id=node_id, bytes_per_second=5e9))
                while "dgx" in await peers.get():
                    pass
                async with _running(again.run()):
                    await _until(second, {"dgx", "other"})
                    routers.set(first, second)
                    await _until(
                        second,
                        {"mac", "dgx", "other"},
                        lambda state: (
                            state.node.node_id != "mac" or [link.from_node_id for link in state.links] == ["other"]
                        ),
                    )

    asyncio.run(run())


def test_the_process_that_began_later_is_the_peer() -> None:
    """A router that has not heard of a restart names the process that is gone."""
    old = router_service_pb2.Peer(node_id="p", address="a:1", epoch=1)
    new = router_service_pb2.Peer(node_id="p", address="a:2", epoch=2)
    other = router_service_pb2.Peer(node_id="q", address="b:1", epoch=1)

    assert merged_peers([{"p": new}, {"p": old, "q": other}]) == {"p": new, "q": other}
    assert merged_peers([{}, {}]) == {}


def test_every_cache_index_knows_all_blocks() -> None:
    """One that appears is told what the node holds, and all hear of changes."""
    hashes = [BlockHash(bytes([number]) * 16) for number in range(3)]

    async def run() -> None:
        async with _index() as first, _index() as second:
            indexes = Movable(first)
            node = CacheIndexPublications(indexes, "mac")
            async with _running(node.run()):
                node.add(BlockEvents(stored=hashes[:2], removed=[]))
                await _holds(first, hashes, 2)
                indexes.set(first, second)
                await _holds(second, hashes, 2)
                node.add(BlockEvents(stored=hashes[2:], removed=[]))
                await _holds(first, hashes, 3)
                await _holds(second, hashes, 3)

    asyncio.run(run())


def test_a_replica_that_is_listed_no_more_keeps_its_stream_for_a_while() -> None:
    """Others still ask it; one that comes back in time is not connected anew."""

    async def run() -> None:
        begun: list[str] = []
        gone: asyncio.Queue[str] = asyncio.Queue()
        both_run = asyncio.Event()

        async def keep(address: str) -> None:
            begun.append(address)
            if len(begun) == 2:
                both_run.set()
            await asyncio.Event().wait()

        addresses = Movable("a", "b")
        replicas = Replicas(addresses, str, keep, on_gone=gone.put_nowait, linger_seconds=0.02)
        async with _running(replicas.run()):
            await both_run.wait()
            addresses.set()
            addresses.set("b")

            assert set(replicas.members) == {"a", "b"}
            assert await gone.get() == "a"
            assert set(replicas.members) == {"b"}
        assert begun == ["a", "b"]

    asyncio.run(asyncio.wait_for(run(), TIMEOUT_SECONDS))


@asynccontextmanager
async def _router(report_seconds: float = 0.5) -> AsyncIterator[str]:
    settings = RouterSettings(port=0, drain_seconds=0.0, report_interval_seconds=report_seconds)
    async with running_router(settings) as server:
        yield f"127.0.0.1:{server.port}"


@asynccontextmanager
async def _index() -> AsyncIterator[str]:
    server = build_server(CacheIndexSettings(port=0))
    yield f"127.0.0.1:{await server.start()}"
    await server.drain(0.0)


@asynccontextmanager
async def _running(work: object) -> AsyncIterator[None]:
    task = asyncio.ensure_future(work)  # type: ignore[arg-type]
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def _until(
    router: str,
    node_ids: set[str],
    is_right: Callable[[router_service_pb2.NodeState], bool] = lambda _: True,
) -> None:
    async with asyncio.timeout(TIMEOUT_SECONDS), open_channel(router) as channel:
        stub = RouterServiceStub(channel)
        while True:
            answer = await stub.ListNodes(router_service_pb2.ListNodesRequest(), timeout=TIMEOUT_SECONDS)
            if {state.node.node_id for state in answer.nodes} == node_ids and all(map(is_right, answer.nodes)):
                return
            await asyncio.sleep(0.01)


async def _holds(index: str, hashes: list[BlockHash], num_blocks: int) -> None:
    request = cache_index_service_pb2.LookupRequest(block_hashes=b"".join(hashes))
    async with asyncio.timeout(TIMEOUT_SECONDS), open_channel(index) as channel:
        while True:
            answer = await CacheIndexServiceStub(channel).Lookup(request, timeout=TIMEOUT_SECONDS)
            if {prefix.node_id: prefix.block_count for prefix in answer.prefixes} == {"mac": num_blocks}:
                return
            await asyncio.sleep(0.01)
