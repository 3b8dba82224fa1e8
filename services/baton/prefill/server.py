"""A prefill node as a process."""

from __future__ import annotations

from functools import partial

from baton.kv_transport.block_service import SERVICE_NAME as BLOCK_SERVICE_NAME
from baton.kv_transport.block_service import add_block_service
from baton.kv_transport.fast_server import FastServer
from baton.kv_transport.kv_service import SERVICE_NAME, add_prefill_service
from baton.node.block_servicer import BlockServicer
from baton.node.node import load_node
from baton.prefill.prefiller import Prefiller
from baton.prefill.servicer import FastPrefill, PrefillServicer
from baton.prefill.settings import PrefillSettings
from baton.rpc.server import GrpcServer, host_port
from baton.v1 import node_pb2


async def serve(settings: PrefillSettings) -> None:
    """Load the model and serve until SIGTERM or SIGINT, then drain.

    Raises:
        ConfigurationError: If the model cannot be loaded or the address cannot be bound.
    """
    node = await load_node(settings, node_pb2.NODE_ROLE_PREFILL)
    server = GrpcServer(host_port(settings.host, settings.port))
    prefiller = Prefiller(node, settings.max_outbox_bytes)
    server.add(SERVICE_NAME, partial(add_prefill_service, PrefillServicer(prefiller)))
    server.add(BLOCK_SERVICE_NAME, partial(add_block_service, BlockServicer(node)))
    await node.run(server, _fast_server(settings, prefiller) if settings.fast_path else None)


def _fast_server(settings: PrefillSettings, prefiller: Prefiller) -> FastServer:
    return FastServer(settings.host, settings.fast_port, FastPrefill(prefiller), advertised=settings.advertised_fast)
