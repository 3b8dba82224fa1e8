"""Tells every cache index, by a stream each, which blocks a node holds: a snapshot, then numbered changes."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from itertools import islice
from typing import Generic, TypeVar

import grpc

from baton.discovery.watch import AddressSource
from baton.internal.v1 import cache_index_service_pb2 as messages
from baton.internal.v1.cache_index_service_pb2_grpc import CacheIndexServiceStub
from baton.kv.hashing import LOWER_TIERS, BlockEvents, BlockHash, Tier, join_hashes
from baton.kv.pool import BlockChanges
from baton.node.cluster.replicas import Replicas, stay_connected

MAX_HASHES = 1 << 14
"""Blocks of one tier in a message of changes: a disk may hold a million, and the index has others to serve."""
MAX_SNAPSHOT_HASHES = 1_000_000
"""Blocks of a snapshot: what an index takes as one message."""
_TIERS = {Tier.HOST: messages.BLOCK_TIER_HOST, Tier.DISK: messages.BLOCK_TIER_DISK}
ItemT = TypeVar("ItemT")


class CacheIndexPublications:
    """A node's streams to all cache indexes. `add` is called on the event loop."""

    def __init__(self, cache_indexes: AddressSource, node_id: str) -> None:
        self._holdings = Holdings()
        self._replicas = Replicas(
            cache_indexes,
            lambda address: CacheIndexPublication(address, node_id, self._holdings),
            CacheIndexPublication.run,
        )

    def add(self, events: BlockEvents) -> None:
        """Take changes of the prefix cache."""
        self._holdings.add(events)
        for publication in self._replicas.members.values():
            publication.add(events)

    async def run(self) -> None:
        """Publish until cancelled."""
        await self._replicas.run()


class CacheIndexPublication:
    """One node's stream to the cache index, made again whenever it breaks.

    It is told of changes when `holdings`, of which snapshots are made without the engine, has them already.
    """

    def __init__(self, cache_index_address: str, node_id: str, holdings: Holdings) -> None:
        self._address = cache_index_address
        self._node_id, self._holdings = node_id, holdings
        self._stream = _ChangeStream(node_id, self._holdings)

    def add(self, events: BlockEvents) -> None:
        """Send changes of the prefix cache."""
        self._stream.add(events)

    async def run(self) -> None:
        """Publish until cancelled."""
        await stay_connected("cache-index", self._address, self._publish)

    async def _publish(self, channel: grpc.aio.Channel) -> None:
        stub = CacheIndexServiceStub(channel)  # type: ignore[no-untyped-call]
        stream = self._stream = _ChangeStream(self._node_id, self._holdings)
        try:
            async for response in stub.Publish(stream.requests()):
                if response.is_snapshot_needed:
                    stream.send_snapshot()
        finally:
            stream.end()


class Holdings:
    """Which blocks a node holds, by tier."""

    def __init__(self) -> None:
        self.hashes: dict[Tier, set[BlockHash]] = {tier: set() for tier in Tier}

    def add(self, events: BlockEvents) -> None:
        """Take changes."""
        held = self.hashes[events.tier]
        held.difference_update(events.removed)
        held.update(events.stored)


class _ChangeStream:
    """The snapshot and the changes that one stream to a cache index has still to send.

    Every stream has its own: gRPC goes on waiting for requests of a broken call, and would take those of the next one.
    """

    def __init__(self, node_id: str, holdings: Holdings) -> None:
        self._node_id, self._holdings = node_id, holdings
        self._changes = {tier: BlockChanges(tier) for tier in Tier}
        self._changed = asyncio.Event()
        self._is_snapshot_due = True
        self._is_ended = False

    def add(self, events: BlockEvents) -> None:
        """Send changes. A block that is stored and removed again before the next message is not sent."""
        changes = self._changes[events.tier]
        for block_hash in events.removed:
            changes.remove(block_hash)
        for block_hash in events.stored:
            changes.store(block_hash)
        self._changed.set()

    def send_snapshot(self) -> None:
        """Send all hashes again."""
        self._is_snapshot_due = True
        self._changed.set()

    def end(self) -> None:
        """Send nothing more."""
        self._is_ended = True
        self._changed.set()

    async def requests(self) -> AsyncIterator[messages.PublishRequest]:
        """Yield a snapshot, then changes as they come, until the stream is ended."""
        sequence_number = 0
        while not self._is_ended:
            if self._is_snapshot_due:
                yield messages.PublishRequest(snapshot=self._snapshot(sequence_number))
            elif any(self._changes.values()):
                events = self._events(sequence_number)
                sequence_number += 1
                yield messages.PublishRequest(events=events)
            else:
                self._changed.clear()
                await self._changed.wait()

    def _snapshot(self, sequence_number: int) -> messages.BlockSnapshot:
        """Return the blocks on the device, after which the index knows no others; lower tiers follow as changes."""
        self._is_snapshot_due = False
        for tier, changes in self._changes.items():
            changes.restart(self._holdings.hashes[tier] if tier in LOWER_TIERS else ())
        return messages.BlockSnapshot(
            node_id=self._node_id,
            next_sequence_number=sequence_number,
            block_hashes=join_hashes(list(islice(self._holdings.hashes[Tier.DEVICE], MAX_SNAPSHOT_HASHES))),
        )

    def _events(self, sequence_number: int) -> messages.BlockEvents:
        device = self._changes[Tier.DEVICE].drain(MAX_HASHES)
        lower = [self._changes[tier].drain(MAX_HASHES) for tier in LOWER_TIERS if self._changes[tier]]
        return messages.BlockEvents(
            sequence_number=sequence_number,
            stored_block_hashes=join_hashes(device.stored),
            removed_block_hashes=join_hashes(device.removed),
            tiers=[
                messages.TierEvents(
                    tier=_TIERS[events.tier],
                    stored_block_hashes=join_hashes(events.stored),
                    removed_block_hashes=join_hashes(events.removed),
                )
                for events in lower
            ],
        )


class LoopFeeder(Generic[ItemT]):
    """Has the event loop take items in their order, one in each of its turns.

    The loop carries out in one turn all that it was asked for before: items that come faster than it takes them would
    keep it from tokens and heartbeats until none is left. Invariant, kept on the loop: while items wait, exactly one
    call of `_take_next` is due. What `take` raises is the loop's to report, and the next one is taken all the same.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, take: Callable[[ItemT], None]) -> None:
        self._loop, self._take = loop, take
        self._items: deque[ItemT] = deque()

    def put(self, item: ItemT) -> None:
        """Have an item taken, from any thread. Items for a closed loop are dropped."""
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._add, item)

    def _add(self, item: ItemT) -> None:
        self._items.append(item)
        if len(self._items) == 1:
            self._loop.call_soon(self._take_next)

    def _take_next(self) -> None:
        item = self._items.popleft()
        if self._items:
            self._loop.call_soon(self._take_next)
        self._take(item)
