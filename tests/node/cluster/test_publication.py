"""Publishing a node's blocks to a cache index that comes and goes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from functools import partial
from typing import Any

from baton.discovery.watch import say_once
from baton.internal.v1 import cache_index_service_pb2 as messages
from baton.internal.v1.cache_index_service_pb2_grpc import (
    CacheIndexServiceServicer,
    add_CacheIndexServiceServicer_to_server,
)
from baton.kv.hashing import BlockEvents, BlockHash, split_hashes
from baton.node.cluster.publication import CacheIndexPublications
from baton.rpc.server import GrpcServer
from system.plan import free_ports

WAIT_SECONDS = 60.0
FIRST, SECOND, THIRD = (BlockHash(bytes([number]) * 16) for number in (1, 2, 3))


class FakeIndex(CacheIndexServiceServicer):
    """Keeps what it is sent."""

    def __init__(self) -> None:
        self.received: asyncio.Queue[messages.PublishRequest] = asyncio.Queue()

    async def Publish(self, requests: AsyncIterator[messages.PublishRequest], context: Any) -> AsyncIterator[Any]:  # noqa: N802
        """Receive until the stream ends."""
        async for request in requests:
            self.received.put_nowait(request)
        return
        yield

    async def next(self) -> messages.PublishRequest:
        """Return the next report."""
        return await asyncio.wait_for(self.received.get(), WAIT_SECONDS)


async def start_index(port: int) -> tuple[FakeIndex, GrpcServer]:
    """Return a fake index and its server."""
    index, server = FakeIndex(), GrpcServer(f"127.0.0.1:{port}")
    server.add(
        "baton.internal.v1.CacheIndexService",
        lambda each: add_CacheIndexServiceServicer_to_server(index, each),  # type: ignore[no-untyped-call]
    )
    await server.start()
    return index, server


def stored(*hashes: BlockHash) -> BlockEvents:
    """Return the event of new blocks."""
    return BlockEvents(stored=list(hashes), removed=[])


def test_an_index_that_starts_again_is_sent_everything_first() -> None:
    """The first report of every stream is a snapshot, however many streams have broken before."""

    async def scenario() -> None:
        port = free_ports(["index"])["index"]
        index, server = await start_index(port)
        publication = CacheIndexPublications(partial(say_once, frozenset({f"127.0.0.1:{port}"})), "decode-0")
        publication.add(stored(FIRST))
        running = asyncio.create_task(publication.run())
        try:
            assert split_hashes((await index.next()).snapshot.block_hashes) == [FIRST]
            for _ in range(3):
                await server.drain(0)
                index, server = await start_index(port)
                assert set(split_hashes((await index.next()).snapshot.block_hashes)) == {FIRST}
            publication.add(stored(SECOND))
            publication.add(BlockEvents(stored=[THIRD], removed=[FIRST]))
            events = (await index.next()).events
            assert events.sequence_number == 0
            assert set(split_hashes(events.stored_block_hashes)) == {SECOND, THIRD}
            assert split_hashes(events.removed_block_hashes) == [FIRST]
        finally:
            running.cancel()
            await asyncio.wait({running})
            await server.drain(0)

    asyncio.run(scenario())
