"""Tells the cache index which blocks a node holds: a snapshot, then numbered changes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable

import grpc

from baton.kv.hashing import BlockHash, join_hashes
from baton.kv.pool import BlockEvents
from baton.v1 import cache_index_service_pb2 as messages
from baton.v1.cache_index_service_pb2_grpc import CacheIndexServiceStub
from baton.worker.reconnect import stay_connected


class Publication:
    """One node's stream to the cache index, made again whenever it breaks.

    It keeps its own copy of the set of hashes, so that a snapshot never has to interrupt the engine. `add` is called on
    the event loop. `hashes` are those that it holds to begin with.
    """

    def __init__(self, cache_index_address: str, node_id: str, hashes: Iterable[BlockHash] = ()) -> None:
        self._address = cache_index_address
        self._node_id = node_id
        self._hashes = set(hashes)
        self._stream = _Stream(node_id, self._hashes)

    def add(self, events: BlockEvents) -> None:
        """Take changes of the prefix cache."""
        self._hashes.difference_update(events.removed)
        self._hashes.update(events.stored)
        self._stream.add(events)

    async def run(self) -> None:
        """Publish until cancelled."""
        await stay_connected("cache-index", self._address, self._publish)

    async def _publish(self, channel: grpc.aio.Channel) -> None:
        stub = CacheIndexServiceStub(channel)  # type: ignore[no-untyped-call]
        stream = self._stream = _Stream(self._node_id, self._hashes)
        try:
            async for response in stub.Publish(stream.requests()):
                if response.is_snapshot_needed:
                    stream.send_snapshot()
        finally:
            stream.end()


class _Stream:
    """What one stream has still to send.

    Every stream has its own: gRPC goes on waiting for requests of a broken call, and would take those of the next one.
    """

    def __init__(self, node_id: str, hashes: set[BlockHash]) -> None:
        self._node_id = node_id
        self._hashes = hashes
        self._stored: dict[BlockHash, None] = {}
        self._removed: dict[BlockHash, None] = {}
        self._changed = asyncio.Event()
        self._changed.set()
        self._is_snapshot_due = True
        self._is_ended = False

    def add(self, events: BlockEvents) -> None:
        """Send changes; what is stored and removed again before its turn is not sent."""
        for block_hash in events.removed:
            if self._stored.pop(block_hash, block_hash) is not None:
                self._removed[block_hash] = None
        for block_hash in events.stored:
            if self._removed.pop(block_hash, block_hash) is not None:
                self._stored[block_hash] = None
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
        while True:
            await self._changed.wait()
            self._changed.clear()
            if self._is_ended:
                return
            stored, removed = list(self._stored), list(self._removed)
            self._stored.clear()
            self._removed.clear()
            if self._is_snapshot_due:
                self._is_snapshot_due = False
                yield messages.PublishRequest(
                    snapshot=messages.BlockSnapshot(
                        node_id=self._node_id,
                        next_sequence_number=sequence_number,
                        block_hashes=join_hashes(list(self._hashes)),
                    )
                )
            elif stored or removed:
                events = messages.BlockEvents(
                    sequence_number=sequence_number,
                    stored_block_hashes=join_hashes(stored),
                    removed_block_hashes=join_hashes(removed),
                )
                sequence_number += 1
                yield messages.PublishRequest(events=events)
