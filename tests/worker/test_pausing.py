"""A node rests while its machine sleeps, over a real channel."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import grpc
import pytest

from baton.engine.events import EngineLoad
from baton.internal.v1 import worker_service_pb2 as messages
from baton.internal.v1.worker_service_pb2_grpc import WorkerServiceStub, add_WorkerServiceServicer_to_server
from baton.node.node import WorkerNode
from baton.rpc.channel import open_channel
from baton.rpc.server import GrpcServer
from baton.wire.quantities import duration_from_seconds
from baton.worker.pausing import SERVICE_NAME, WorkerServicer

_TIMEOUT_SECONDS = 20.0
_LONG_SECONDS = 600.0


class Node:
    """A node with one request."""

    node_id = "mac-1"

    def __init__(self) -> None:
        self.num_running = 1
        self.is_paused = asyncio.Event()
        self.is_resumed = asyncio.Event()

    def set_paused(self, *, is_paused: bool) -> None:
        """Note it."""
        (self.is_paused if is_paused else self.is_resumed).set()
        (self.is_resumed if is_paused else self.is_paused).clear()

    @property
    def engine(self) -> Any:
        """Return what tells what runs."""
        return SimpleNamespace(load=lambda: EngineLoad(0, self.num_running, 0, 100, 0.0, 0))


@asynccontextmanager
async def _served(node: Node) -> AsyncIterator[WorkerServiceStub]:
    server = GrpcServer("127.0.0.1:0")
    servicer = WorkerServicer(cast(WorkerNode, node), Path())
    server.add(SERVICE_NAME, partial(add_WorkerServiceServicer_to_server, servicer))
    port = await server.start()
    async with open_channel(f"127.0.0.1:{port}") as channel:
        yield WorkerServiceStub(channel)
    await server.drain(0)


def _request(wait_seconds: float, lease_seconds: float = _LONG_SECONDS) -> messages.PauseRequest:
    return messages.PauseRequest(wait=duration_from_seconds(wait_seconds), lease=duration_from_seconds(lease_seconds))


def test_a_pause_waits_for_what_runs() -> None:
    """New work is refused from the beginning; the answer comes when nothing runs any more."""

    async def main() -> None:
        node = Node()
        async with _served(node) as stub:
            call = stub.Pause(_request(_LONG_SECONDS), timeout=_TIMEOUT_SECONDS)
            await asyncio.wait_for(node.is_paused.wait(), _TIMEOUT_SECONDS)
            node.num_running = 0

            assert (await call).request_count == 0
            await stub.Resume(messages.ResumeRequest(), timeout=_TIMEOUT_SECONDS)
            assert node.is_resumed.is_set()

    asyncio.run(main())


def test_a_request_that_does_not_end_is_counted_and_not_cut() -> None:
    """The machine sleeps anyhow."""

    async def main() -> None:
        node = Node()
        async with _served(node) as stub:
            assert (await stub.Pause(_request(0.0), timeout=_TIMEOUT_SECONDS)).request_count == 1
            assert node.is_paused.is_set()

    asyncio.run(main())


def test_a_lease_that_ends_lets_the_node_work_again() -> None:
    """The agent that asked may be gone."""

    async def main() -> None:
        node = Node()
        async with _served(node) as stub:
            await stub.Pause(_request(0.0, lease_seconds=0.01), timeout=_TIMEOUT_SECONDS)

            await asyncio.wait_for(node.is_resumed.wait(), _TIMEOUT_SECONDS)

    asyncio.run(main())


@pytest.mark.parametrize(
    ("request_", "field"),
    [
        (_request(-1.0), "wait"),
        (_request(4000.0), "wait"),
        (_request(0.0, 0.0), "lease"),
        (_request(0.0, 1e8), "lease"),
    ],
)
def test_times_that_make_no_sense_are_refused_by_name(request_: messages.PauseRequest, field: str) -> None:
    """Nothing is paused then."""

    async def main() -> None:
        node = Node()
        async with _served(node) as stub:
            with pytest.raises(grpc.aio.AioRpcError, match=field):
                await stub.Pause(request_, timeout=_TIMEOUT_SECONDS)
            assert not node.is_paused.is_set()

    asyncio.run(main())
