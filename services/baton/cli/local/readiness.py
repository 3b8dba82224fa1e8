"""Waits until the processes of `baton up` answer: `/ready` of the gateway, nodes of the router."""

from __future__ import annotations

import asyncio
import http.client
from collections.abc import Awaitable, Callable, Mapping

import grpc

from baton.internal.v1 import router_service_pb2, router_service_pb2_grpc
from baton.rpc.channel import open_channel

POLL_SECONDS = 0.2
"""Pause between questions."""
CALL_SECONDS = 2.0
"""Time for one answer."""


async def is_ready(host: str, port: int) -> bool:
    """Return whether the gateway says that it can take requests."""
    return await asyncio.to_thread(_get_status, host, port, "/ready") == http.client.OK


async def wait_until(is_true: Callable[[], Awaitable[bool]], *, poll_seconds: float = POLL_SECONDS) -> None:
    """Return when the question is answered with yes; it is asked again and again."""
    while not await is_true():  # noqa: ASYNC110 - the state lives in another process
        await asyncio.sleep(poll_seconds)


async def devices_of(router_address: str) -> Mapping[str, str]:
    """Return the device of each node that the router knows, by node id; empty if the router does not say."""
    async with open_channel(router_address) as channel:
        stub = router_service_pb2_grpc.RouterServiceStub(channel)  # type: ignore[no-untyped-call]
        try:
            answer = await stub.ListNodes(router_service_pb2.ListNodesRequest(), timeout=CALL_SECONDS)
        except grpc.aio.AioRpcError:
            return {}
        return {state.node.node_id: state.node.device for state in answer.nodes}


def _get_status(host: str, port: int, path: str) -> int:
    connection = http.client.HTTPConnection(host, port, timeout=CALL_SECONDS)
    try:
        connection.request("GET", path)
        return connection.getresponse().status
    except (OSError, http.client.HTTPException):
        return 0
    finally:
        connection.close()
