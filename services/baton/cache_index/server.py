"""The cache index as a process: each node's stream, a snapshot then numbered events, and look-ups."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from functools import partial
from typing import TypeAlias

import grpc

from baton.cache_index.index import CacheIndex
from baton.cache_index.settings import CacheIndexSettings
from baton.config.container_limits import Memory, machine_memory, usable_memory
from baton.config.memory_budget import Claim, room_in, share_out
from baton.errors import InvalidFieldError
from baton.internal.v1 import cache_index_service_pb2 as messages
from baton.internal.v1 import cache_index_service_pb2_grpc as service
from baton.kv.hashing import HASH_BYTES, BlockEvents, BlockHash, HeldPrefix, Tier, split_hashes
from baton.rpc.server import GrpcServer, PortLimits, host_port, wait_for_stop_signal
from baton.security.access import current_caller

_TIERS = {messages.BLOCK_TIER_HOST: Tier.HOST, messages.BLOCK_TIER_DISK: Tier.DISK}
log = logging.getLogger(__name__)

SLICE_BLOCKS = 1024
"""Of a snapshot, taken or forgotten at once: a millisecond of the event loop."""
MAX_EVENTS_BYTES = 2 << 20
"""Largest `BlockEvents`; nodes send 16,384 hashes of a tier at once."""


class PublishStream:
    """Checks a stream's rules and feeds the index; `close` forgets the node."""

    def __init__(self, index: CacheIndex) -> None:
        self._index = index
        self._publisher = 0
        self._node_id = ""

    async def take(self, request: messages.PublishRequest) -> bool:
        """Apply one report; return whether the node must send a snapshot.

        Raises InvalidFieldError if the report breaks the stream's rules, ForbiddenError if the caller is another node,
        SupersededError if another stream publishes this node.
        """
        if request.HasField("snapshot"):
            await self._take_snapshot(request.snapshot)
            return False
        if not request.HasField("events"):
            raise InvalidFieldError("report", "expected snapshot or events")
        if not self._node_id:
            raise InvalidFieldError("report", "the first message must be a snapshot")
        return self._take_events(request.events)

    async def close(self) -> None:
        """Forget the node."""
        if self._node_id:
            try:
                await self._forget_blocks()
            finally:
                self._index.forget(self._publisher, self._node_id)
            log.info("node_forgotten node_id=%s", self._node_id)

    async def _take_snapshot(self, snapshot: messages.BlockSnapshot) -> None:
        if not snapshot.node_id or (self._node_id and snapshot.node_id != self._node_id):
            raise InvalidFieldError("snapshot.node_id", f"expected one node per stream, got {snapshot.node_id!r}")
        current_caller().check_speaks_for(snapshot.node_id)
        joined = snapshot.block_hashes
        hashes_from_wire("snapshot.block_hashes", joined[: len(joined) % HASH_BYTES])
        self._publisher = self._publisher or self._index.open_publisher()
        await self._forget_blocks()
        self._index.replace(self._publisher, snapshot.node_id, (), snapshot.next_sequence_number)
        self._node_id = snapshot.node_id
        for begin in range(0, len(joined), SLICE_BLOCKS * HASH_BYTES):
            await asyncio.sleep(0)
            hashes = split_hashes(joined[begin : begin + SLICE_BLOCKS * HASH_BYTES])
            if not self._index.extend(self._publisher, self._node_id, hashes):
                log.warning("blocks_left_out node_id=%s", self._node_id)
                break
        log.info("node_published node_id=%s blocks=%d", snapshot.node_id, len(joined) // HASH_BYTES)

    async def _forget_blocks(self) -> None:
        """Forget most of what the node holds; others are answered meanwhile."""
        while self._index.shrink(self._publisher, self._node_id, SLICE_BLOCKS):  # noqa: ASYNC110 - it is work
            await asyncio.sleep(0)

    def _take_events(self, events: messages.BlockEvents) -> bool:
        if events.ByteSize() > MAX_EVENTS_BYTES:
            raise InvalidFieldError("events", f"expected at most {MAX_EVENTS_BYTES} bytes, got {events.ByteSize()}")
        is_snapshot_needed = self._index.apply(
            self._publisher,
            self._node_id,
            events.sequence_number,
            removed=hashes_from_wire("events.removed_block_hashes", events.removed_block_hashes),
            stored=hashes_from_wire("events.stored_block_hashes", events.stored_block_hashes),
            lower=[_lower_from_wire(each) for each in events.tiers if each.tier in _TIERS],
        )
        if is_snapshot_needed:
            log.warning("events_missed node_id=%s sequence_number=%d", self._node_id, events.sequence_number)
        return is_snapshot_needed


def hashes_from_wire(field: str, joined: bytes) -> list[BlockHash]:
    """Return the hashes of a message field; raise InvalidFieldError if it is not a whole number of hashes."""
    try:
        return split_hashes(joined)
    except ValueError as error:
        raise InvalidFieldError(field, str(error)) from error


def _lower_from_wire(events: messages.TierEvents) -> BlockEvents:
    """Return the changes of a tier that is known."""
    return BlockEvents(
        stored=hashes_from_wire("events.tiers.stored_block_hashes", events.stored_block_hashes),
        removed=hashes_from_wire("events.tiers.removed_block_hashes", events.removed_block_hashes),
        tier=_TIERS[events.tier],
    )


Context: TypeAlias = "grpc.aio.ServicerContext[object, object]"

MAX_LOOKUP_BYTES = 1 << 20
"""Largest `LookupRequest.block_hashes`: 65,536 blocks."""


class CacheIndexServicer(service.CacheIndexServiceServicer):
    """Serves one `CacheIndex`, on one event loop."""

    def __init__(self, index: CacheIndex) -> None:
        self._index = index

    async def Publish(  # noqa: N802 - named by the proto
        self, request_iterator: AsyncIterator[messages.PublishRequest], _context: Context
    ) -> AsyncIterator[messages.PublishResponse]:
        """Feed a node's blocks to the index until the stream ends, then forget them."""
        publication = PublishStream(self._index)
        try:
            async for request in request_iterator:
                if await publication.take(request):
                    yield messages.PublishResponse(is_snapshot_needed=True)
        finally:
            await publication.close()

    async def Lookup(self, request: messages.LookupRequest, _context: Context) -> messages.LookupResponse:  # noqa: N802
        """Return the longest prefix that each node holds."""
        if len(request.block_hashes) > MAX_LOOKUP_BYTES:
            raise InvalidFieldError("block_hashes", f"{len(request.block_hashes)} bytes exceed {MAX_LOOKUP_BYTES}")
        prefixes = self._index.held_prefixes(hashes_from_wire("block_hashes", request.block_hashes))
        return messages.LookupResponse(prefixes=[_to_wire(*each) for each in sorted(prefixes.items())])


def _to_wire(node_id: str, prefix: HeldPrefix) -> messages.NodePrefix:
    return messages.NodePrefix(
        node_id=node_id,
        block_count=prefix.num_blocks,
        host_block_count=prefix.num_host_blocks,
        lower_block_count=prefix.num_lower_blocks,
        disk_block_count=prefix.num_disk_blocks,
    )


BLOCK_BYTES = 400
"""Memory of a block that one node holds: 396 were measured; each further node that holds it takes 184."""
MAX_REQUEST_BYTES = 16 << 20
"""Largest message that is taken: a snapshot of a million blocks."""
_MOST_BLOCKS, _LEAST_BLOCKS = 100_000_000, 1_000
SERVICE_NAME = messages.DESCRIPTOR.services_by_name["CacheIndexService"].full_name


def build_server(settings: CacheIndexSettings) -> GrpcServer:
    """Return a server with an empty index, not yet started."""
    server = GrpcServer(host_port(settings.host, settings.port), limits=PortLimits(request_bytes=MAX_REQUEST_BYTES))
    most = max_blocks(settings, usable_memory(), machine_memory())
    servicer = CacheIndexServicer(CacheIndex(most, max(1, int(settings.max_node_share * most))))
    server.add(SERVICE_NAME, partial(service.add_CacheIndexServiceServicer_to_server, servicer))
    return server


def max_blocks(settings: CacheIndexSettings, memory: Memory, machine: Memory) -> int:
    """Return how many blocks may be known; raise ConfigurationError with the sum if as many as asked for do not fit."""
    given = None if settings.max_blocks == "auto" else settings.max_blocks * BLOCK_BYTES
    claim = Claim("max_blocks", _MOST_BLOCKS * BLOCK_BYTES, _LEAST_BLOCKS * BLOCK_BYTES, given_bytes=given)
    room = room_in(memory, machine)
    chosen = share_out(room, [claim])["max_blocks"] // BLOCK_BYTES
    log.info("memory_shared room_bytes=%d cause=%r max_blocks=%d", *room, chosen)
    return chosen


async def serve(settings: CacheIndexSettings) -> None:
    """Serve until SIGTERM or SIGINT, then drain; raise ConfigurationError if the address cannot be bound."""
    server = build_server(settings)
    stop = asyncio.ensure_future(wait_for_stop_signal())
    try:
        await server.start()
        await stop
        await server.drain(settings.drain_seconds)
    finally:
        stop.cancel()
