"""A prefill node as a process."""

from __future__ import annotations

from functools import partial

from baton.prefill.prefiller import Prefiller
from baton.prefill.servicer import PrefillServicer
from baton.prefill.settings import PrefillSettings
from baton.rpc.server import GrpcServer, host_port
from baton.v1 import node_pb2
from baton.v1 import prefill_service_pb2 as messages
from baton.v1 import prefill_service_pb2_grpc as service
from baton.worker.node import load_node

SERVICE_NAME = messages.DESCRIPTOR.services_by_name["PrefillService"].full_name


async def serve(settings: PrefillSettings) -> None:
    """Load the model and serve until SIGTERM or SIGINT, then drain.

    Raises:
        ConfigurationError: If the model cannot be loaded or the address cannot be bound.
    """
    node = await load_node(settings, node_pb2.NODE_ROLE_PREFILL)
    server = GrpcServer(host_port(settings.host, settings.port))
    servicer = PrefillServicer(Prefiller(node))
    server.add(SERVICE_NAME, partial(service.add_PrefillServiceServicer_to_server, servicer))
    await node.run(server)
