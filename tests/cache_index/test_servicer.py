"""CacheIndexService over a real channel."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from baton.cache_index.server import BLOCK_BYTES, MAX_EVENTS_BYTES, build_server, max_blocks
from baton.cache_index.settings import CacheIndexSettings
from baton.config.container_limits import Memory
from baton.errors import ConfigurationError
from baton.internal.v1 import cache_index_service_pb2 as messages
from baton.internal.v1 import cache_index_service_pb2_grpc as service
from baton.kv.hashing import BlockHash, join_hashes
from baton.rpc.channel import open_channel
from baton.rpc.status import error_info

HASHES = [BlockHash(bytes([number]) * 16) for number in range(4)]
TIMEOUT_SECONDS = 60.0


def with_index(client: Callable[[service.CacheIndexServiceStub, grpc.aio.Channel], Awaitable[None]]) -> None:
    """Run a client against an index on a free port."""

    async def run() -> None:
        server = build_server(CacheIndexSettings(port=0))
        channel = open_channel(f"127.0.0.1:{await server.start()}")
        try:
            await client(service.CacheIndexServiceStub(channel), channel)
        finally:
            await channel.close()
            await server.drain(0)

    asyncio.run(asyncio.wait_for(run(), TIMEOUT_SECONDS))


def snapshot(hashes: list[BlockHash], next_number: int = 0, node_id: str = "a") -> messages.PublishRequest:
    """Return a snapshot message."""
    return messages.PublishRequest(
        snapshot=messages.BlockSnapshot(
            node_id=node_id, next_sequence_number=next_number, block_hashes=join_hashes(hashes)
        )
    )


def events(number: int, stored: list[BlockHash]) -> messages.PublishRequest:
    """Return an event message."""
    return messages.PublishRequest(
        events=messages.BlockEvents(sequence_number=number, stored_block_hashes=join_hashes(stored))
    )


async def holds(stub: service.CacheIndexServiceStub, expected: dict[str, int]) -> None:
    """Look up all hashes until the answer is the expected one; reports and lookups travel on different calls."""
    found: dict[str, int] | None = None
    while found != expected:
        response = await stub.Lookup(messages.LookupRequest(block_hashes=join_hashes(HASHES)), timeout=20)
        found = {prefix.node_id: prefix.block_count for prefix in response.prefixes}


def test_published_blocks_are_found_until_the_stream_ends() -> None:
    """Snapshot, then an event, then the end of the stream."""

    async def client(stub: service.CacheIndexServiceStub, channel: grpc.aio.Channel) -> None:
        call = stub.Publish()
        await call.write(snapshot(HASHES[:2]))
        await holds(stub, {"a": 2})
        await call.write(events(0, [HASHES[2]]))
        await holds(stub, {"a": 3})
        await call.done_writing()
        await holds(stub, {})

    with_index(client)


def test_blocks_below_the_device_are_told_apart() -> None:
    """A tier that the index does not know is left out, and so is one that is not named."""

    async def client(stub: service.CacheIndexServiceStub, channel: grpc.aio.Channel) -> None:
        call = stub.Publish()
        tiers = [
            messages.TierEvents(tier=messages.BLOCK_TIER_HOST, stored_block_hashes=join_hashes(HASHES[1:2])),
            messages.TierEvents(tier=messages.BLOCK_TIER_DISK, stored_block_hashes=join_hashes(HASHES[:3])),
            messages.TierEvents(tier=7, stored_block_hashes=join_hashes(HASHES)),  # type: ignore[arg-type]
            messages.TierEvents(stored_block_hashes=join_hashes(HASHES)),
        ]
        await call.write(snapshot(HASHES[:1]))
        await call.write(messages.PublishRequest(events=messages.BlockEvents(tiers=tiers)))
        request, found = messages.LookupRequest(block_hashes=join_hashes(HASHES)), messages.NodePrefix()
        while not found.lower_block_count:
            response = await stub.Lookup(request, timeout=20)
            found = response.prefixes[0] if response.prefixes else found
        assert found == messages.NodePrefix(
            node_id="a", block_count=1, host_block_count=1, lower_block_count=2, disk_block_count=1
        )
        call.cancel()

    with_index(client)


def test_a_gap_is_answered_with_a_request_for_a_snapshot() -> None:
    """Batch 1 in place of batch 0."""

    async def client(stub: service.CacheIndexServiceStub, channel: grpc.aio.Channel) -> None:
        call = stub.Publish()
        await call.write(snapshot([]))
        await call.write(events(1, [HASHES[0]]))
        answer = await call.read()
        assert answer.is_snapshot_needed
        await call.write(snapshot(HASHES[:1], 2))
        await holds(stub, {"a": 1})
        call.cancel()
        await holds(stub, {})

    with_index(client)


@pytest.mark.parametrize(
    ("reports", "field"),
    [
        ([events(0, [])], "report"),
        ([messages.PublishRequest()], "report"),
        ([snapshot([], node_id="")], "snapshot.node_id"),
        ([snapshot([]), snapshot([], node_id="b")], "snapshot.node_id"),
        (
            [messages.PublishRequest(snapshot=messages.BlockSnapshot(node_id="a", block_hashes=b"short"))],
            "snapshot.block_hashes",
        ),
    ],
)
def test_broken_publications_are_refused_by_field(reports: list[messages.PublishRequest], field: str) -> None:
    """INVALID_ARGUMENT INVALID_FIELD with the name of the field."""

    async def client(stub: service.CacheIndexServiceStub, channel: grpc.aio.Channel) -> None:
        call = stub.Publish(iter(reports))
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call.read()
        info = error_info(caught.value)
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert info is not None
        assert (info.reason, info.metadata["field"]) == ("INVALID_FIELD", field)

    with_index(client)


def test_a_second_stream_of_a_node_waits_for_the_end_of_the_first() -> None:
    """It is refused with ABORTED, and neither what it says nor its end touches the first one's blocks."""

    async def client(stub: service.CacheIndexServiceStub, channel: grpc.aio.Channel) -> None:
        first, second = stub.Publish(), stub.Publish()
        await first.write(snapshot(HASHES[:1]))
        await holds(stub, {"a": 1})
        await second.write(snapshot(HASHES[:3]))
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await second.read()
        assert caught.value.code() is grpc.StatusCode.ABORTED
        await first.write(events(0, [HASHES[1]]))
        await holds(stub, {"a": 2})
        await first.done_writing()
        await holds(stub, {})
        third = stub.Publish()
        await third.write(snapshot(HASHES[:3]))
        await holds(stub, {"a": 3})
        third.cancel()

    with_index(client)


def test_more_changes_than_nodes_send_at_once_are_refused() -> None:
    """Whoever has more sends a snapshot."""

    async def client(stub: service.CacheIndexServiceStub, channel: grpc.aio.Channel) -> None:
        call = stub.Publish()
        await call.write(snapshot([]))
        await call.write(events(0, HASHES * (MAX_EVENTS_BYTES // 64)))
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call.read()
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT

    with_index(client)


@pytest.mark.parametrize("joined", [b"x" * 17, b"x" * ((1 << 20) + 16)], ids=["odd", "too long"])
def test_bad_lookups_are_refused(joined: bytes) -> None:
    """Neither half hashes nor megabytes of them."""

    async def client(stub: service.CacheIndexServiceStub, channel: grpc.aio.Channel) -> None:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.Lookup(messages.LookupRequest(block_hashes=joined), timeout=20)
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT

    with_index(client)


def test_health_names_the_service() -> None:
    """grpc.health.v1 answers SERVING for baton.internal.v1.CacheIndexService."""

    async def client(stub: service.CacheIndexServiceStub, channel: grpc.aio.Channel) -> None:
        request = health_pb2.HealthCheckRequest(service="baton.internal.v1.CacheIndexService")
        response = await health_pb2_grpc.HealthStub(channel).Check(request, timeout=20)
        assert response.status == health_pb2.HealthCheckResponse.SERVING

    with_index(client)


@pytest.mark.parametrize(("limit", "least", "most"), [(256 << 20, 100_000, 600_000), (2 << 30, 2_000_000, 4_900_000)])
def test_an_index_knows_what_its_container_has_room_for(limit: int, least: int, most: int) -> None:
    """Of a limit of 2 GiB it uses three quarters of what nine tenths leave."""
    pod, machine = Memory(limit, limit - (70 << 20)), Memory(64 << 30, 40 << 30)
    chosen = max_blocks(CacheIndexSettings(), pod, machine)

    assert least < chosen < most
    assert chosen * BLOCK_BYTES + (70 << 20) <= 0.9 * limit
    with pytest.raises(ConfigurationError, match=r"max_blocks 40 GB = 40 GB do not fit into .* of the limit of"):
        max_blocks(CacheIndexSettings(max_blocks=100_000_000), pod, machine)
