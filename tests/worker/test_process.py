"""One process hosts one service of a node, or several, until it is asked to stop."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from baton.decode import service as decode
from baton.decode.settings import DecodeSettings
from baton.demo import checkpoint_dir
from baton.errors import BatonError
from baton.internal.v1 import decode_service_pb2, prefill_service_pb2
from baton.internal.v1.decode_service_pb2_grpc import DecodeServiceStub
from baton.kv_transport.kv_services import KvStub
from baton.node.node import ENGINE_HUNG, WorkerNode, load_node
from baton.node.service import NodeService
from baton.prefill.servicer import prefill_service
from baton.prefill.settings import PrefillSettings
from baton.router.server import running_router
from baton.router.settings import RouterSettings
from baton.rpc.channel import open_channel
from baton.worker.process import WorkerProcess
from baton.worker.settings import WorkerSettings

PREFILL = prefill_service_pb2.DESCRIPTOR.services_by_name["PrefillService"].full_name
COMMON = {"model_dir": checkpoint_dir(), "engine": "mock", "host": "127.0.0.1", "port": 0}
AWAY = {"router_address": "127.0.0.1:1", "cache_index_address": "127.0.0.1:1"}


@pytest.fixture(autouse=True)
def collected(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave the garbage collector of the tests as it is."""
    monkeypatch.setattr("baton.node.node.freeze_loaded_objects", lambda: None)


@asynccontextmanager
async def _router(port: int = 0) -> AsyncIterator[str]:
    settings = RouterSettings(host="127.0.0.1", port=port, cache_index_address="", drain_seconds=0.0)
    async with running_router(settings) as server:
        yield f"127.0.0.1:{server.port}"


async def _status(channel: grpc.aio.Channel, name: str) -> int:
    request = health_pb2.HealthCheckRequest(service=name)
    return (await health_pb2_grpc.HealthStub(channel).Check(request, timeout=30)).status  # type: ignore[no-any-return]


def _service(name: str, node: WorkerNode) -> NodeService:
    if name == PREFILL:
        return prefill_service(node, PrefillSettings(**COMMON, **AWAY))
    return decode.decode_service(node, DecodeSettings(**COMMON, **AWAY))


def _noting(service: NodeService, drained: list[str]) -> NodeService:
    """Return a service that notes when it is told to drain."""

    def on_drain() -> None:
        drained.append(service.name)
        service.on_drain()

    return replace(service, on_drain=on_drain)


async def _until_serving(channel: grpc.aio.Channel, name: str, *, is_serving: bool = True) -> None:
    request = health_pb2.HealthCheckRequest(service=name)
    async for answer in health_pb2_grpc.HealthStub(channel).Watch(request):
        if (answer.status == health_pb2.HealthCheckResponse.SERVING) == is_serving:
            return


@pytest.mark.parametrize("hosted", [(PREFILL,), (decode.SERVICE_NAME,), (PREFILL, decode.SERVICE_NAME)])
def test_a_process_serves_what_it_hosts_until_it_is_stopped(hosted: Sequence[str]) -> None:
    """Alone or beside each other, on one node: each has its health, and the end comes without cutting."""
    drained: list[str] = []

    async def main() -> None:
        async with _router() as router_address:
            node = await load_node(WorkerSettings(**COMMON, **AWAY | {"router_address": router_address}), "worker")
            services = [_noting(_service(name, node), drained) for name in hosted]
            running = asyncio.create_task(WorkerProcess(node, services).run())
            async with await _channel_to(node) as channel:
                for name in hosted:
                    await _until_serving(channel, name)
                await _use(channel, hosted)
            os.kill(os.getpid(), signal.SIGTERM)
            await running

    asyncio.run(asyncio.wait_for(main(), 60))

    assert drained == list(hosted)


def test_a_node_is_ready_once_a_router_has_accepted_it_and_stays_so() -> None:
    """A pod that cannot reach the router must not replace one that could; one that could is no worse without it."""
    serving, not_serving = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING

    async def main() -> None:
        async with _router() as router_address:
            port = int(router_address.rpartition(":")[2])
        settings = WorkerSettings(**COMMON, **AWAY | {"router_address": router_address})
        node = await load_node(settings, "decode")
        running = asyncio.create_task(WorkerProcess(node, [_service(decode.SERVICE_NAME, node)]).run())
        async with await _channel_to(node) as channel:
            await _until_serving(channel, "")
            assert await _status(channel, decode.SERVICE_NAME) == not_serving

            async with _router(port):
                await _until_serving(channel, decode.SERVICE_NAME)

            assert await _status(channel, decode.SERVICE_NAME) == serving
        os.kill(os.getpid(), signal.SIGTERM)
        await running

    asyncio.run(asyncio.wait_for(main(), 60))


def test_a_node_whose_pass_hangs_gives_up_its_work_and_takes_none_until_it_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All that it hosts is told, health and routers too; a pass that ends after all brings it back."""
    monkeypatch.setattr("baton.worker.engine_watch._PASS_LOOK_SECONDS", 0.01)
    is_hung, given_up = [False], list[BatonError]()

    async def main() -> None:
        async with _router() as router_address:
            node = await load_node(WorkerSettings(**COMMON, **AWAY | {"router_address": router_address}), "worker")
            node.engine.is_pass_hung = lambda: is_hung[0]  # type: ignore[method-assign]
            services = [
                replace(_service(name, node), on_hung=given_up.append) for name in (PREFILL, decode.SERVICE_NAME)
            ]
            running = asyncio.create_task(WorkerProcess(node, services).run())
            async with await _channel_to(node) as channel:
                await _until_serving(channel, decode.SERVICE_NAME)
                is_hung[0] = True
                await _until_serving(channel, decode.SERVICE_NAME, is_serving=False)
                with pytest.raises(grpc.aio.AioRpcError, match="a pass hangs"):
                    await _use(channel, (decode.SERVICE_NAME,))
                is_hung[0] = False
                await _until_serving(channel, decode.SERVICE_NAME)
                await _use(channel, (decode.SERVICE_NAME,))
            os.kill(os.getpid(), signal.SIGTERM)
            await running

    asyncio.run(asyncio.wait_for(main(), 60))

    assert [error.reason for error in given_up] == [ENGINE_HUNG] * 2


async def _channel_to(node: WorkerNode) -> grpc.aio.Channel:
    while not node.node_id:  # noqa: ASYNC110 - a node tells no start
        await asyncio.sleep(0.01)
    return open_channel(f"127.0.0.1:{node.node_id.rpartition('-')[2]}")


async def _use(channel: grpc.aio.Channel, hosted: Sequence[str]) -> None:
    if PREFILL in hosted:
        assert [len(message.payload) async for message in KvStub(channel).probe(10, 10.0)] == [10]
    if decode.SERVICE_NAME in hosted:
        request = decode_service_pb2.DecodeServiceGenerateRequest(
            request_id="r", attempt=1, model_id=checkpoint_dir().name, prompt_token_ids=[5, 6, 7]
        )
        request.sampling.temperature, request.sampling.max_token_count = 0.0, 2
        elements = [message.WhichOneof("element") async for message in DecodeServiceStub(channel).Generate(request)]
        assert elements[0] == "accepted"
        assert elements[-1] == "finished"
