"""The cache index as a process."""

from __future__ import annotations

import asyncio
from functools import partial

from baton.cache_index.index import CacheIndex
from baton.cache_index.servicer import CacheIndexServicer
from baton.cache_index.settings import CacheIndexSettings
from baton.rpc.server import GrpcServer, host_port, wait_for_stop_signal
from baton.v1 import cache_index_service_pb2 as messages
from baton.v1 import cache_index_service_pb2_grpc as service

SERVICE_NAME = messages.DESCRIPTOR.services_by_name["CacheIndexService"].full_name


def build_server(settings: CacheIndexSettings) -> GrpcServer:
    """Return a server with an empty index, not yet started."""
    server = GrpcServer(host_port(settings.host, settings.port))
    servicer = CacheIndexServicer(CacheIndex())
    server.add(SERVICE_NAME, partial(service.add_CacheIndexServiceServicer_to_server, servicer))
    return server


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
