"""Waits until the processes of `baton up` answer, and asks the router for nodes and links."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence

import grpc

from baton.capacity.snapshot import NodeRole, can_decode, can_prefill
from baton.internal.v1 import router_service_pb2, router_service_pb2_grpc
from baton.rpc.channel import open_channel

POLL_SECONDS = 0.2
"""Pause between questions."""
CALL_SECONDS = 2.0
"""Time for one answer."""


async def wait_until(is_true: Callable[[], Awaitable[bool]]) -> None:
    """Return when the question is answered with yes; it is asked again and again."""
    while not await is_true():  # noqa: ASYNC110 - the state lives in another process
        await asyncio.sleep(POLL_SECONDS)


async def knows_nodes(router_address: str, roles: Mapping[str, NodeRole]) -> bool:
    """Return whether the router knows all nodes, and the links from those that prefill to the others that decode."""
    states = {state.node.node_id: state for state in await nodes_of(router_address)}
    links = {(link.from_node_id, node_id) for node_id, state in states.items() for link in state.links}
    wanted = {
        (sender, receiver)
        for sender, role in roles.items()
        for receiver in roles
        if sender != receiver and can_prefill(role) and can_decode(roles[receiver])
    }
    return roles.keys() <= states.keys() and wanted <= links


async def nodes_of(router_address: str) -> Sequence[router_service_pb2.NodeState]:
    """Return the nodes that the router knows; none if the router does not say."""
    async with open_channel(router_address) as channel:
        stub = router_service_pb2_grpc.RouterServiceStub(channel)  # type: ignore[no-untyped-call]
        try:
            answer = await stub.ListNodes(router_service_pb2.ListNodesRequest(), timeout=CALL_SECONDS)
        except grpc.aio.AioRpcError:
            return ()
        return tuple(answer.nodes)
