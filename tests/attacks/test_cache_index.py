"""Finding 14: one node fills the cache index, keeps others from it, and takes another's name."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import grpc
import pytest

from attacks.victims import INTERNAL, IS_FORMER, MIB, Damage, full, running
from system.plan import HOST, free_ports

NUM_BLOCKS = 900_000
"""Of a snapshot: 14 MiB."""


class Index:
    """A cache index that runs, with room for ten thousand blocks."""

    def __init__(self, port: int) -> None:
        self.address = f"{HOST}:{port}"
        self.pid = 0

    def ask(self) -> None:
        """Look a prompt up."""
        with grpc.insecure_channel(self.address) as channel:
            method = f"/{INTERNAL}.CacheIndexService/Lookup"
            try:
                channel.unary_unary(method)(b"", timeout=30)  # type: ignore[call-arg]
            except grpc.RpcError as error:
                raise ConnectionError(str(error)) from error


@pytest.fixture
def index(tmp_path: Path) -> Iterator[Index]:
    """Run one."""
    port = free_ports(["index"])["index"]
    index = Index(port)
    settings = {"port": str(port)} | ({} if IS_FORMER else {"max_blocks": "100000"})
    with running("cache-index", settings, tmp_path, index.ask) as process:
        index.pid = process.pid
        yield index


def _publish(index: Index, act: Callable[[grpc.aio.StreamStreamCall[bytes, bytes]], Awaitable[None]]) -> None:
    """Act on a stream of one's own."""

    async def run() -> None:
        async with grpc.aio.insecure_channel(index.address) as channel:
            await act(channel.stream_stream(f"/{INTERNAL}.CacheIndexService/Publish")())  # type: ignore[arg-type]

    asyncio.run(asyncio.wait_for(run(), 60))


def _snapshot(node_id: str, num_blocks: int) -> bytes:
    from baton.internal.v1.cache_index_service_pb2 import BlockSnapshot, PublishRequest

    blocks = BlockSnapshot(node_id=node_id, block_hashes=os.urandom(16 * num_blocks))
    return PublishRequest(snapshot=blocks).SerializeToString()


@full
def test_one_node_has_its_share_and_nobody_waits(index: Index) -> None:
    """Snapshots of 14 MiB, one after another: the process grows by its share, and look-ups go on."""

    async def flood(call: grpc.aio.StreamStreamCall[bytes, bytes]) -> None:
        for _ in range(3):
            await call.write(_snapshot("greedy", NUM_BLOCKS))
        await call.done_writing()
        with contextlib.suppress(TimeoutError):  # where it goes on for ever
            async with asyncio.timeout(20):
                async for _ in call:
                    pass

    with Damage(index.pid, index.ask) as damage:
        _publish(index, flood)
    print(f"three snapshots of 14 MiB: {damage}")

    assert damage.most_bytes < 160 * MIB  # two messages, and 40 MiB of what it may hold
    assert damage.longest_wait_seconds < 0.5


@full
def test_a_name_that_is_published_is_not_taken(index: Index) -> None:
    """Who claims it is refused; whoever has it goes on."""

    async def claim(call: grpc.aio.StreamStreamCall[bytes, bytes]) -> None:
        await call.write(_snapshot("mac-1", 1))
        index_of_other = grpc.aio.insecure_channel(index.address)
        other = index_of_other.stream_stream(f"/{INTERNAL}.CacheIndexService/Publish")()  # type: ignore[call-arg]
        await asyncio.sleep(0.5)
        await other.write(_snapshot("mac-1", 2))
        with pytest.raises(grpc.aio.AioRpcError) as refusal:
            await asyncio.wait_for(other.read(), 5)
        assert refusal.value.code() is grpc.StatusCode.ABORTED
        await index_of_other.close()

    _publish(index, claim)
