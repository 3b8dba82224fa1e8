"""A worker's streams to router and cache index, over services that break them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import Any

import pytest

from baton.discovery.watch import say_once
from baton.errors import SupersededError
from baton.internal.v1 import (
    cache_index_service_pb2,
    cache_index_service_pb2_grpc,
    node_pb2,
    router_service_pb2,
    router_service_pb2_grpc,
)
from baton.kv.hashing import BlockEvents, BlockHash, Tier, split_hashes
from baton.node.cluster import publication
from baton.node.cluster.publication import CacheIndexPublications
from baton.node.cluster.registration import RouterRegistration
from baton.rpc.server import GrpcServer
from baton.v1 import generation_pb2

TIMEOUT_SECONDS = 60.0
HASHES = [BlockHash(bytes([number]) * 16) for number in range(8)]


class Calls:
    """The calls that a service has got, each with its requests in a queue and a way to end it."""

    def __init__(self) -> None:
        self.started: asyncio.Queue[Call] = asyncio.Queue()

    async def take(self) -> Call:
        """Return the next call."""
        return await asyncio.wait_for(self.started.get(), TIMEOUT_SECONDS)

    async def serve(self, request_iterator: Any, context: Any) -> AsyncIterator[Any]:
        """Serve one call until the test ends it."""
        call = Call(context)
        await self.started.put(call)
        reading = asyncio.create_task(call.read(request_iterator))
        try:
            while (response := await call.responses.get()) is not None:
                yield response
            if call.error is not None:
                raise call.error
        finally:
            reading.cancel()


class Call:
    """One call."""

    def __init__(self, context: Any) -> None:
        self.requests: asyncio.Queue[Any] = asyncio.Queue()
        self.responses: asyncio.Queue[Any] = asyncio.Queue()
        self.error: Exception | None = None

    async def read(self, request_iterator: Any) -> None:
        """Keep the requests."""
        async for request in request_iterator:
            await self.requests.put(request)

    async def next(self) -> Any:
        """Return the next request."""
        return await asyncio.wait_for(self.requests.get(), TIMEOUT_SECONDS)

    def end(self, error: Exception | None = None) -> None:
        """End the call."""
        self.error = error
        self.responses.put_nowait(None)


class Index(cache_index_service_pb2_grpc.CacheIndexServiceServicer):
    """A cache index that does what the test says."""

    def __init__(self, calls: Calls) -> None:
        self.calls = calls

    async def Publish(self, request_iterator: Any, context: Any) -> AsyncIterator[Any]:  # noqa: N802
        """Serve one node."""
        async for response in self.calls.serve(request_iterator, context):
            yield response


class Router(router_service_pb2_grpc.RouterServiceServicer):
    """A router that does what the test says."""

    def __init__(self, calls: Calls) -> None:
        self.calls = calls

    async def Register(self, request_iterator: Any, context: Any) -> AsyncIterator[Any]:  # noqa: N802
        """Serve one node."""
        async for response in self.calls.serve(request_iterator, context):
            yield response


def with_services(client: Callable[[Calls, Calls, str], Awaitable[None]]) -> None:
    """Run a client with the calls of an index and of a router, both at one address."""

    async def run() -> None:
        index, router = Calls(), Calls()
        server = GrpcServer("127.0.0.1:0")
        server.add(
            "baton.internal.v1.CacheIndexService",
            partial(cache_index_service_pb2_grpc.add_CacheIndexServiceServicer_to_server, Index(index)),
        )
        server.add(
            "baton.internal.v1.RouterService",
            partial(router_service_pb2_grpc.add_RouterServiceServicer_to_server, Router(router)),
        )
        address = f"127.0.0.1:{await server.start()}"
        try:
            await client(index, router, address)
        finally:
            await server.drain(0)

    asyncio.run(asyncio.wait_for(run(), 2 * TIMEOUT_SECONDS))


async def stop(task: asyncio.Task[None]) -> None:
    """Cancel a task and wait for it."""
    task.cancel()
    await asyncio.wait({task}, timeout=TIMEOUT_SECONDS)
    assert task.done()


def snapshot_of(request: cache_index_service_pb2.PublishRequest) -> set[bytes]:
    """Return the hashes of a snapshot."""
    assert request.HasField("snapshot")
    return set(split_hashes(request.snapshot.block_hashes))


def test_a_publication_begins_with_a_snapshot_and_goes_on_with_numbered_events() -> None:
    """Numbers have no gaps."""

    async def client(index: Calls, router: Calls, address: str) -> None:
        publication = CacheIndexPublications(partial(say_once, frozenset({address})), "node")
        publication.add(BlockEvents(HASHES[:2], []))
        task = asyncio.create_task(publication.run())
        call = await index.take()
        snapshot = await call.next()
        events = []
        for stored, removed in (([HASHES[2]], []), ([], [HASHES[0]])):
            publication.add(BlockEvents(stored, removed))
            events.append((await call.next()).events)
        await stop(task)

        assert snapshot.snapshot.node_id == "node"
        assert snapshot_of(snapshot) == set(HASHES[:2])
        first = snapshot.snapshot.next_sequence_number
        assert [event.sequence_number for event in events] == [first, first + 1]
        assert split_hashes(events[0].stored_block_hashes) == [HASHES[2]]
        assert split_hashes(events[1].removed_block_hashes) == [HASHES[0]]

    with_services(client)


def test_blocks_below_the_device_follow_a_snapshot(monkeypatch: pytest.MonkeyPatch) -> None:
    """In messages of bounded size, of both tiers; an old index, which reads no tier, sees numbers without gaps."""
    monkeypatch.setattr(publication, "MAX_HASHES", 2)

    async def client(index: Calls, router: Calls, address: str) -> None:
        node = CacheIndexPublications(partial(say_once, frozenset({address})), "node")
        node.add(BlockEvents(HASHES[:1], []))
        node.add(BlockEvents(HASHES[:3], [], Tier.DISK))
        node.add(BlockEvents(HASHES[:1], [], Tier.HOST))
        task = asyncio.create_task(node.run())
        call = await index.take()
        snapshot = await call.next()
        events = [(await call.next()).events for _ in range(2)]
        node.add(BlockEvents([], HASHES[:1], Tier.DISK))
        events.append((await call.next()).events)
        await stop(task)

        assert snapshot_of(snapshot) == {HASHES[0]}
        assert [each.sequence_number for each in events] == [0, 1, 2]
        assert not any(each.stored_block_hashes or each.removed_block_hashes for each in events)
        told = [(each.tier, split_hashes(each.stored_block_hashes)) for event in events[:2] for each in event.tiers]
        on_disk = [
            block_hash
            for tier, hashes in told
            if tier == cache_index_service_pb2.BLOCK_TIER_DISK
            for block_hash in hashes
        ]
        assert [len(hashes) for _, hashes in told] == [1, 2, 1]
        assert (cache_index_service_pb2.BLOCK_TIER_HOST, HASHES[:1]) in told
        assert sorted(on_disk) == HASHES[:3]
        (last,) = events[2].tiers
        assert (last.tier, split_hashes(last.removed_block_hashes)) == (
            cache_index_service_pb2.BLOCK_TIER_DISK,
            HASHES[:1],
        )

    with_services(client)


@pytest.mark.parametrize("error", [None, RuntimeError("index broke")])
def test_a_publication_that_broke_loses_no_event(error: Exception | None) -> None:
    """The next stream begins with a snapshot; events after it come on it, not on the one that ended."""

    async def client(index: Calls, router: Calls, address: str) -> None:
        publication = CacheIndexPublications(partial(say_once, frozenset({address})), "node")
        publication.add(BlockEvents(HASHES[:1], []))
        task = asyncio.create_task(publication.run())
        call = await index.take()
        await call.next()
        call.end(error)
        call = await index.take()
        assert snapshot_of(await call.next()) == {HASHES[0]}
        for number in range(1, 5):
            publication.add(BlockEvents([HASHES[number]], []))
            assert split_hashes((await call.next()).events.stored_block_hashes) == [HASHES[number]]
        await stop(task)

    with_services(client)


def test_a_gap_is_closed_by_a_new_snapshot() -> None:
    """The index asks for it."""

    async def client(index: Calls, router: Calls, address: str) -> None:
        publication = CacheIndexPublications(partial(say_once, frozenset({address})), "node")
        task = asyncio.create_task(publication.run())
        call = await index.take()
        await call.next()
        publication.add(BlockEvents(HASHES[:2], []))
        await call.next()
        call.responses.put_nowait(cache_index_service_pb2.PublishResponse(is_snapshot_needed=True))
        snapshot = await call.next()
        publication.add(BlockEvents([HASHES[3]], []))
        events = (await call.next()).events
        await stop(task)

        assert snapshot_of(snapshot) == set(HASHES[:2])
        assert events.sequence_number == snapshot.snapshot.next_sequence_number

    with_services(client)


def outcome(number: int) -> generation_pb2.PlacementSummary:
    """Return an outcome."""
    return generation_pb2.PlacementSummary(placement_id=f"placement-{number}")


def registration(address: str, report_seconds: float = 60.0, **fields: Any) -> RouterRegistration:
    """Return a registration of a node."""
    return RouterRegistration(
        address, node_pb2.NodeDescription(node_id="node"), node_pb2.LoadReport, report_seconds=report_seconds, **fields
    )


def test_a_registration_begins_with_the_node_and_its_load() -> None:
    """Then outcomes as they come, and load at least as often as agreed."""

    async def client(index: Calls, router: Calls, address: str) -> None:
        node = registration(address, report_seconds=0.05)
        task = asyncio.create_task(node.run())
        call = await router.take()
        kinds = [(await call.next()).WhichOneof("report") for _ in range(3)]
        node.report_outcome(outcome(1))
        while (report := await call.next()).WhichOneof("report") != "outcomes":
            pass
        await stop(task)

        assert kinds == ["node", "load", "load"]
        assert list(report.outcomes.outcomes) == [outcome(1)]

    with_services(client)


def test_outcomes_of_one_moment_share_a_message() -> None:
    """In the order in which they came: a message costs the router more than an outcome."""

    async def client(index: Calls, router: Calls, address: str) -> None:
        node = registration(address)
        task = asyncio.create_task(node.run())
        call = await router.take()
        for number in range(100):
            node.report_outcome(outcome(number))
        while not (report := await call.next()).HasField("outcomes"):
            pass
        await stop(task)

        assert list(report.outcomes.outcomes) == [outcome(number) for number in range(100)]

    with_services(client)


def test_outcomes_without_a_pause_do_not_put_the_load_report_off() -> None:
    """A busy node must not look silent."""

    async def client(index: Calls, router: Calls, address: str) -> None:
        node = registration(address, report_seconds=0.2)
        task = asyncio.create_task(node.run())
        call = await router.take()
        for number in range(20):
            node.report_outcome(outcome(number))
        num_loads = num_outcomes = 0
        async with asyncio.timeout(TIMEOUT_SECONDS):
            while num_loads < 4 or num_outcomes <= 20:
                report = await call.next()
                num_loads += report.HasField("load")
                if report.HasField("outcomes"):
                    num_outcomes += len(report.outcomes.outcomes)
                    node.report_outcome(outcome(num_outcomes))  # the next one is there before the interval is over
        await stop(task)

    with_services(client)


@pytest.mark.parametrize("error", [None, RuntimeError("router broke")])
def test_a_registration_that_broke_loses_no_outcome(error: Exception | None) -> None:
    """Not even to the stream that ended; the node describes itself again."""

    async def client(index: Calls, router: Calls, address: str) -> None:
        node = registration(address)
        task = asyncio.create_task(node.run())
        call = await router.take()
        assert (await call.next()).HasField("node")
        await call.next()
        call.end(error)
        call = await router.take()
        assert (await call.next()).node.node_id == "node"
        for number in range(4):
            node.report_outcome(outcome(number))
        outcomes = []
        while len(outcomes) < 4:
            report = await call.next()
            if report.HasField("outcomes"):
                outcomes += report.outcomes.outcomes
        await stop(task)

        assert outcomes == [outcome(number) for number in range(4)]

    with_services(client)


def test_a_router_that_starts_again_is_told_the_links_again() -> None:
    """A link is measured once, when its prefill node appears."""

    async def client(index: Calls, router: Calls, address: str) -> None:
        node = registration(address)
        task = asyncio.create_task(node.run())
        link = node_pb2.LinkMeasurement(from_node_id="p", bytes_per_second=2.0)
        node.report_link(node_pb2.LinkMeasurement(from_node_id="p", bytes_per_second=1.0))
        node.report_link(link)
        call = await router.take()
        kinds = [(await call.next()).WhichOneof("report") for _ in range(3)]
        call.end(None)
        call = await router.take()
        reports = [await call.next() for _ in range(3)]
        await stop(task)

        assert kinds == ["node", "load", "link"]
        assert reports[2].link == link

    with_services(client)


def test_a_router_that_has_just_started_does_not_make_links_forgotten() -> None:
    """It names the few nodes that it knows; links from the others are not measured again."""

    async def client(index: Calls, router: Calls, address: str) -> None:
        seen: asyncio.Queue[Any] = asyncio.Queue()
        node = registration(address, report_seconds=0.05, on_peers=seen.put_nowait)
        link = node_pb2.LinkMeasurement(from_node_id="p", bytes_per_second=1.0)
        node.report_link(link)
        task = asyncio.create_task(node.run())
        call = await router.take()
        call.responses.put_nowait(router_service_pb2.RegisterResponse(peers=router_service_pb2.Peers()))
        assert await asyncio.wait_for(seen.get(), TIMEOUT_SECONDS) == {}
        call.end(None)
        call = await router.take()
        reports = [await call.next() for _ in range(3)]
        await stop(task)

        assert reports[2].link == link

    with_services(client)


def test_peers_are_handed_on_by_name() -> None:
    """As often as the router names them."""

    async def client(index: Calls, router: Calls, address: str) -> None:
        seen: asyncio.Queue[Any] = asyncio.Queue()
        task = asyncio.create_task(registration(address, on_peers=seen.put_nowait).run())
        call = await router.take()
        peer = router_service_pb2.Peer(node_id="p", address="127.0.0.1:1", epoch=3)
        call.responses.put_nowait(router_service_pb2.RegisterResponse(registered=router_service_pb2.Registered()))
        call.responses.put_nowait(router_service_pb2.RegisterResponse(peers=router_service_pb2.Peers(nodes=[peer])))
        peers = await asyncio.wait_for(seen.get(), TIMEOUT_SECONDS)
        await stop(task)

        assert peers == {"p": peer}

    with_services(client)


def test_a_node_whose_name_another_has_waits_for_it() -> None:
    """It neither ends nor fights: once the other has gone, it is registered."""

    async def client(index: Calls, router: Calls, address: str) -> None:
        accepted = asyncio.Event()
        task = asyncio.create_task(registration(address, on_accepted=accepted.set).run())
        for _ in range(2):
            (await router.take()).end(SupersededError("another process has this name"))
        call = await router.take()
        call.responses.put_nowait(router_service_pb2.RegisterResponse(registered=router_service_pb2.Registered()))

        await asyncio.wait_for(accepted.wait(), TIMEOUT_SECONDS)
        await stop(task)

    with_services(client)
