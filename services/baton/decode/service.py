"""Decode as a service that a worker process hosts."""

from __future__ import annotations

from functools import partial

from baton.decode.generation import DecodeGenerator
from baton.decode.kv_stream.reader import Timeouts
from baton.decode.kv_stream.receive_budget import ReceiveBudget
from baton.decode.peers import PeerSet
from baton.decode.servicer import DecodeServicer
from baton.decode.settings import DecodeSettings
from baton.internal.v1 import decode_service_pb2 as messages
from baton.internal.v1 import decode_service_pb2_grpc as service
from baton.node.node import WorkerNode
from baton.node.sensors.memory import open_judge
from baton.node.service import NodeService
from baton.rpc.server import host_port
from baton.shm.lender import CAN_SEAL, Lender
from baton.telemetry.metrics import Metrics

SERVICE_NAME = messages.DESCRIPTOR.services_by_name["DecodeService"].full_name


def decode_service(node: WorkerNode, settings: DecodeSettings) -> NodeService:
    """Return the service on a node; its links to other nodes are up while its `run` runs."""
    metrics = Metrics()
    lent_bytes = node.budgets["shared_memory_bytes"] if CAN_SEAL else 0  # elsewhere segments are files on a disk
    budget = ReceiveBudget(node.budgets["max_receive_bytes"], settings.max_batch_size, open_judge())
    peers = PeerSet(
        settings.probe_bytes,
        lambda link: node.registration.report_link(link),
        choice=settings.kv_transport,
        lender=Lender(lent_bytes),
        metrics=metrics,
        budget=budget,
    )
    timeouts = Timeouts(settings.prefill_queue_timeout_seconds, settings.frame_timeout_seconds)
    address = host_port(node.settings.host, node.settings.port)
    servicer = DecodeServicer(DecodeGenerator(node, peers, timeouts, metrics, budget), address)
    return NodeService(
        SERVICE_NAME,
        partial(service.add_DecodeServiceServicer_to_server, servicer),
        run=peers.run,
        on_peers=peers.update,
        on_hung=servicer.give_up,
        on_drain=servicer.drain,
        left=servicer.left,
    )
