"""The cache index as a process."""

from __future__ import annotations

import asyncio
import logging
from functools import partial

from baton.cache_index.index import CacheIndex
from baton.cache_index.servicer import CacheIndexServicer
from baton.cache_index.settings import CacheIndexSettings
from baton.config.container_limits import Memory, machine_memory, usable_memory
from baton.config.memory_budget import Claim, room_in, share_out
from baton.internal.v1 import cache_index_service_pb2 as messages
from baton.internal.v1 import cache_index_service_pb2_grpc as service
from baton.rpc.limits import PortLimits
from baton.rpc.server import GrpcServer, host_port, wait_for_stop_signal

log = logging.getLogger(__name__)

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
    """Return how many blocks may be known.

    Raises:
        ConfigurationError: If as many were asked for as do not fit; the message has the sum.
    """
    given = None if settings.max_blocks == "auto" else settings.max_blocks * BLOCK_BYTES
    claim = Claim("max_blocks", _MOST_BLOCKS * BLOCK_BYTES, _LEAST_BLOCKS * BLOCK_BYTES, given_bytes=given)
    room = room_in(memory, machine)
    chosen = share_out(room, [claim])["max_blocks"] // BLOCK_BYTES
    log.info("memory_shared room_bytes=%d cause=%r max_blocks=%d", *room, chosen)
    return chosen


async def serve(settings: CacheIndexSettings) -> None:
    """Serve until SIGTERM or SIGINT, then drain.

    Raises:
        ConfigurationError: If the address cannot be bound.
    """
    server = build_server(settings)
    stop = asyncio.ensure_future(wait_for_stop_signal())
    try:
        await server.start()
        await stop
        await server.drain(settings.drain_seconds)
    finally:
        stop.cancel()
