"""Asks the cache index who holds a prompt's prefix; without an answer in time nobody does."""

from __future__ import annotations

import logging
from typing import Protocol

import grpc

from baton.kv.tier import HeldPrefix
from baton.rpc.loop_channel import LoopChannel
from baton.telemetry.metrics import Metrics
from baton.v1 import cache_index_service_pb2 as messages
from baton.v1 import cache_index_service_pb2_grpc as service

log = logging.getLogger(__name__)


class CacheLookup(Protocol):
    """Finds prefixes."""

    async def held_prefixes(self, block_hashes: bytes) -> dict[str, HeldPrefix]:
        """Return the leading blocks that each node holds; empty if nobody does or nobody answers."""


class NoCacheLookup:
    """Stands in where there is no cache index."""

    async def held_prefixes(self, block_hashes: bytes) -> dict[str, HeldPrefix]:  # noqa: ARG002 - the protocol's signature
        """Return no prefixes."""
        return {}


class CacheIndexClient:
    """Client of CacheIndexService.Lookup with a short deadline; a cold cache is a worse placement, not an error.

    Every failure is counted; the first after an answer is logged as a warning, further ones are not.
    """

    def __init__(self, channel: LoopChannel, *, timeout_seconds: float, metrics: Metrics) -> None:
        self._stub = service.CacheIndexServiceStub(channel)  # type: ignore[no-untyped-call]
        self._timeout_seconds = timeout_seconds
        self._metrics = metrics
        self._is_lost = False

    async def held_prefixes(self, block_hashes: bytes) -> dict[str, HeldPrefix]:
        """Return the leading blocks that each node holds; empty if the index does not answer in time."""
        if not block_hashes:
            return {}
        request = messages.LookupRequest(block_hashes=block_hashes)
        try:
            response = await self._stub.Lookup(request, timeout=self._timeout_seconds)
        except grpc.aio.AioRpcError as error:
            self._metrics.add_failed_lookup(error.code().name)
            log.log(
                logging.DEBUG if self._is_lost else logging.WARNING, "cache_lookup_failed code=%s", error.code().name
            )
            self._is_lost = True
            return {}
        self._is_lost = False
        return {prefix.node_id: _from_wire(prefix) for prefix in response.prefixes}


def _from_wire(message: messages.NodePrefix) -> HeldPrefix:
    """Return a prefix; an index that knows of devices alone says nothing of the rest."""
    return HeldPrefix(
        message.block_count, message.host_block_count, message.lower_block_count, message.disk_block_count
    )
