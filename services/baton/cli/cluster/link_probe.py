"""How fast this machine receives from each of a router's nodes that prefill."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from datetime import UTC, datetime

from baton.capacity.machine_profile import MeasuredLink, rate_of
from baton.cli.cluster.router_call import CALL_SECONDS
from baton.internal.v1 import node_pb2, router_service_pb2
from baton.internal.v1.router_service_pb2_grpc import RouterServiceStub
from baton.kv_transport.kv_services import KvStub
from baton.kv_transport.link_probe import measure_link
from baton.rpc.channel import open_channel
from baton.wire.node_roles import prefills
from baton.wire.quantities import seconds_from_duration

_NUM_MEASUREMENTS = 3
_PROBE_BYTES = 4 << 20


async def measure_links(router: RouterServiceStub) -> Mapping[str, MeasuredLink]:
    """Return the links by the sending node's id.

    Raises:
        grpc.aio.AioRpcError: If the router or a node does not answer.
    """
    answer = await router.ListNodes(router_service_pb2.ListNodesRequest(), timeout=CALL_SECONDS)
    senders = [state.node for state in answer.nodes if prefills(state.node)]
    return {node.node_id: await _measured(node) for node in senders}


async def _measured(node: node_pb2.NodeDescription) -> MeasuredLink:
    async with open_channel(node.address, is_dedicated=True) as channel:
        stub = KvStub(channel)
        probes = [await measure_link(stub, node.node_id, _PROBE_BYTES) for _ in range(_NUM_MEASUREMENTS)]
    return MeasuredLink(
        rate_of([probe.bytes_per_second for probe in probes]),
        statistics.median(seconds_from_duration(probe.round_trip) for probe in probes),
        datetime.now(UTC).isoformat(timespec="seconds"),
    )
