"""A decode node as a process."""

from __future__ import annotations

import asyncio
from functools import partial

from baton.decode.generation import DecodeGenerator
from baton.decode.kv_stream.reader import Timeouts
from baton.decode.peers import PeerSet
from baton.decode.servicer import DecodeServicer
from baton.decode.settings import DecodeSettings
from baton.kv_transport.block_service import SERVICE_NAME as BLOCK_SERVICE_NAME
from baton.kv_transport.block_service import add_block_service
from baton.node.block_servicer import BlockServicer
from baton.node.node import load_node
from baton.rpc.server import GrpcServer, host_port
from baton.shm.lender import Lender
from baton.shm.segment import CAN_SEAL
from baton.telemetry.metrics import Metrics
from baton.v1 import decode_service_pb2 as messages
from baton.v1 import decode_service_pb2_grpc as service
from baton.v1 import node_pb2

SERVICE_NAME = messages.DESCRIPTOR.services_by_name["DecodeService"].full_name


async def serve(settings: DecodeSettings) -> None:
    """Load the model and serve until SIGTERM or SIGINT, then drain.

    Raises:
        ConfigurationError: If the model cannot be loaded or the address cannot be bound.
    """
    node = await load_node(settings, node_pb2.NODE_ROLE_DECODE, settings.ingest_share)
    metrics = Metrics()
    peers = PeerSet(
        settings.probe_bytes,
        lambda link: node.registration.report_link(link),
        choice=settings.kv_transport,
        lender=Lender(settings.shared_memory_bytes if CAN_SEAL else 0),  # elsewhere segments are files on a disk
        metrics=metrics,
    )
    timeouts = Timeouts(settings.prefill_queue_timeout_seconds, settings.frame_timeout_seconds)
    server = GrpcServer(host_port(settings.host, settings.port))
    servicer = DecodeServicer(DecodeGenerator(node, peers, timeouts, metrics))
    server.add(SERVICE_NAME, partial(service.add_DecodeServiceServicer_to_server, servicer))
    server.add(BLOCK_SERVICE_NAME, partial(add_block_service, BlockServicer(node)))
    async with asyncio.TaskGroup() as tasks:
        following = tasks.create_task(peers.run())
        try:
            await node.run(server, on_peers=peers.update, on_drain=servicer.drain)
        finally:
            following.cancel()
