"""Tells every cache index which blocks a node holds: routers may ask any of them."""

from __future__ import annotations

from baton.discovery.source import AddressSource
from baton.kv.changes import BlockEvents
from baton.worker.publication import Holdings, Publication
from baton.worker.replicas import Replicas


class Publications:
    """A node's streams to all cache indexes. `add` is called on the event loop."""

    def __init__(self, cache_indexes: AddressSource, node_id: str) -> None:
        self._node_id = node_id
        self._holdings = Holdings()
        self._replicas = Replicas(cache_indexes, self._publication, Publication.run)

    def add(self, events: BlockEvents) -> None:
        """Take changes of the prefix cache."""
        self._holdings.add(events)
        for publication in self._replicas:
            publication.add(events)

    async def run(self) -> None:
        """Publish until cancelled."""
        await self._replicas.run()

    def _publication(self, address: str) -> Publication:
        return Publication(address, self._node_id, self._holdings.hashes)
