"""CacheIndexService over the index."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TypeAlias

import grpc

from baton.cache_index.index import CacheIndex
from baton.cache_index.publication import Publication, hashes_from_wire
from baton.errors import InvalidFieldError
from baton.kv.tier import HeldPrefix
from baton.v1 import cache_index_service_pb2 as messages
from baton.v1 import cache_index_service_pb2_grpc as service

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
        publication = Publication(self._index)
        try:
            async for request in request_iterator:
                if publication.take(request):
                    yield messages.PublishResponse(is_snapshot_needed=True)
        finally:
            publication.close()

    async def Lookup(  # noqa: N802 - named by the proto
        self, request: messages.LookupRequest, _context: Context
    ) -> messages.LookupResponse:
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
