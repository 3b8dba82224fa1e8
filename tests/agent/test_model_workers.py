"""What an agent does about orders."""

from __future__ import annotations

import asyncio
import json
import re
import socket
import struct
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

from baton.agent.child import ChildSpec
from baton.agent.model_workers import ModelWorkers, StartedWorker, UnreachableRouterError, slug_of
from baton.internal.v1 import model_service_pb2 as messages
from baton.internal.v1.model_service_pb2 import ModelOrder
from baton.internal.v1.model_service_pb2_grpc import ModelServiceServicer, add_ModelServiceServicer_to_server
from baton.rpc.server import GrpcServer
from baton.security.access import ROUTER_NAMES
from baton.security.authority import certificate_request, create_authority, create_key, write_private
from baton.security.tls import TlsIdentity, secured_by

_CONFIG = {
    "num_attention_heads": 4,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "vocab_size": 100,
    "max_position_embeddings": 512,
    "torch_dtype": "float32",
}
SERVES = """
import asyncio, sys, grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
async def main():
    server = grpc.aio.server()
    servicer = health.aio.HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
    server.add_insecure_port(sys.argv[1])
    await servicer.set("", health_pb2.HealthCheckResponse.SERVING)
    await server.start()
    await server.wait_for_termination()
asyncio.run(main())
"""
REFUSES = "import sys; print('error: no such engine'); sys.exit(2)"


def _folder(path: Path) -> Path:
    path.mkdir()
    (path / "config.json").write_text(json.dumps(_CONFIG))
    header = json.dumps({"w": {"dtype": "F32", "shape": [250], "data_offsets": [0, 1000]}}).encode()
    (path / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + bytes(1000))
    return path


def _workers(program: str) -> ModelWorkers:
    def make(name: str, _folder: Path, _kv_bytes: int) -> StartedWorker:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            address = f"127.0.0.1:{free.getsockname()[1]}"
        return StartedWorker(ChildSpec(name, [sys.executable, "-c", program, address]), address, slug_of(name))

    return ModelWorkers("mac", make, 4, lambda _name, _line: None)


async def _until(
    workers: ModelWorkers, is_so: Callable[[messages.SuperviseRequest], bool]
) -> messages.SuperviseRequest:
    async with asyncio.timeout(60):
        while not is_so(report := workers.report()):  # noqa: ASYNC110 - processes tell nobody
            await asyncio.sleep(0.02)
    return report


def _orders(epoch: int, *orders: ModelOrder) -> messages.SuperviseResponse:
    return messages.SuperviseResponse(epoch=epoch, orders=orders)


def _is_at(stage: messages.ModelStage) -> Callable[[messages.SuperviseRequest], bool]:
    return lambda report: [model.stage for model in report.models] == [stage]


def test_a_model_is_stored_then_served_then_gone(tmp_path: Path) -> None:
    """Its memory is held as long as its process lives; what it would take is known once it is stored."""

    async def run() -> None:
        workers, source = _workers(SERVES), str(_folder(tmp_path / "llama"))
        workers.obey(_orders(1, ModelOrder(name="llama", source=source)))
        stored = await _until(workers, _is_at(messages.MODEL_STAGE_STORED))
        workers.obey(_orders(2, ModelOrder(name="llama", source=source, is_served=True)))
        serving = await _until(workers, _is_at(messages.MODEL_STAGE_SERVING))
        workers.obey(_orders(3))
        gone = await _until(workers, lambda report: not report.models)

        assert stored.models[0].weight_byte_count == 1000
        assert stored.models[0].shape.layer_count == 2
        assert serving.models[0].held_byte_count > 1_000_000
        assert gone.epoch == 3

    asyncio.run(run())


def test_orders_of_an_earlier_epoch_are_ignored(tmp_path: Path) -> None:
    """A router that leads no more ends nothing."""

    async def run() -> None:
        workers, source = _workers(SERVES), str(_folder(tmp_path / "llama"))
        workers.obey(_orders(5, ModelOrder(name="llama", source=source)))
        await _until(workers, _is_at(messages.MODEL_STAGE_STORED))
        workers.obey(_orders(4))

        assert [model.name for model in workers.report().models] == ["llama"]
        assert workers.report().epoch == 5

    asyncio.run(run())


def test_an_epoch_that_nothing_could_come_after_is_no_order(tmp_path: Path) -> None:
    """Whoever gave it would have had the last word."""

    async def run() -> None:
        workers = _workers(SERVES)
        workers.obey(_orders(2**63 - 1, ModelOrder(name="evil", source=str(_folder(tmp_path / "evil")))))

        assert not workers.report().models
        assert workers.report().epoch == 0

    asyncio.run(run())


def test_a_member_that_takes_a_router_s_place_orders_nothing(tmp_path: Path) -> None:
    """By a node's certificate, which opens servers of the deployment as a router's does."""
    authority, asked = create_authority(datetime.now(UTC), timedelta(days=1)), list[str]()

    class Forged(ModelServiceServicer):
        async def Supervise(self, requests: Any, _context: Any) -> AsyncIterator[messages.SuperviseResponse]:  # noqa: N802
            asked.append("orders")
            yield _orders(1, ModelOrder(name="evil", source=str(tmp_path)))
            await asyncio.Event().wait()

    def member(name: str) -> TlsIdentity:
        key, folder = create_key(), tmp_path / name
        names = {"node_id": name, "server_name": "baton", "now": datetime.now(UTC), "lifetime": timedelta(days=1)}
        signed = authority.sign(certificate_request(key, name), **names)  # type: ignore[arg-type]
        for file, content in {"ca.crt": authority.certificate, "tls.crt": signed, "tls.key": key}.items():
            write_private(folder / file, content)
        return TlsIdentity(folder / "tls.crt", folder / "tls.key", folder / "ca.crt", "baton")

    async def ordered(name: str) -> list[str]:
        with secured_by(member(name)):
            server = GrpcServer("127.0.0.1:0")
            server.add("baton.internal.v1.ModelService", partial(add_ModelServiceServicer_to_server, Forged()))
            await server.start()
        with secured_by(member("mac")):
            workers = _workers(SERVES)
            for router_name in ROUTER_NAMES:
                with suppress(UnreachableRouterError, TimeoutError):
                    async with asyncio.timeout(2):
                        await workers._follow(f"127.0.0.1:{server.port}", router_name)
        await server.drain(0)
        return [model.name for model in workers.report().models]

    async def run() -> None:
        assert await ordered("mac-2") == []
        assert not asked
        assert await ordered("router") == await ordered("baton") == ["evil"]

    asyncio.run(run())


def test_what_fails_says_why_and_is_tried_again_when_asked_anew(tmp_path: Path) -> None:
    """A worker that would end alike is not started again and again; a folder that is not here is absent."""

    async def run() -> None:
        workers, source = _workers(REFUSES), str(_folder(tmp_path / "llama"))
        order = ModelOrder(name="llama", source=source, is_served=True, attempt=1)
        workers.obey(_orders(1, order))
        failed = await _until(workers, _is_at(messages.MODEL_STAGE_FAILED))
        workers.obey(_orders(2, order))
        again = workers.report()
        workers.obey(_orders(3, ModelOrder(name="llama", source=str(tmp_path / "none"), attempt=2)))
        absent = await _until(workers, _is_at(messages.MODEL_STAGE_ABSENT))

        assert failed.models[0].problem == "its worker ended with exit status 2: error: no such engine"
        assert again.models[0].stage == messages.MODEL_STAGE_FAILED
        assert "there is no such folder" in absent.models[0].problem

    asyncio.run(run())


def test_no_two_models_have_workers_of_one_name() -> None:
    """Names that differ in what node ids have no characters for, and long ones of the same beginning."""
    names = ["qwen3-0-6b", "Qwen3-0.6B", "qwen3.0.6b", "long" * 20, "long" * 20 + "-2", "\u6a21\u578b"]

    slugs = [slug_of(name) for name in names]

    assert slugs[0] == names[0]
    assert len({*slugs}) == len(names)
    assert all(re.fullmatch("[a-z0-9][a-z0-9-]{0,39}", slug) for slug in slugs)
    assert len(slug_of("Qwen3-0.6B", 12)) <= 12
