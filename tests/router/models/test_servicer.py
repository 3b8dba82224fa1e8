"""What an agent may report: for its machine alone, and nothing that plans for all could not be made with."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import grpc
import pytest

from baton.capacity.reference_models import LLAMA_3_1_8B
from baton.internal.v1 import model_service_pb2 as messages
from baton.internal.v1.model_service_pb2 import DesiredModel, MachineModel
from baton.internal.v1.model_service_pb2_grpc import ModelServiceStub, add_ModelServiceServicer_to_server
from baton.internal.v1.node_pb2 import ModelShape, NodeProfile
from baton.router.models.agent_session import AgentSession
from baton.router.models.desired import DesiredModels
from baton.router.models.servicer import SERVICE_NAME, ModelServicer
from baton.router.models.supervision import ModelSupervision
from baton.router.state import RouterState, StateLimits
from baton.rpc.server import GrpcServer
from baton.wire.quantities import shape_to_proto

MOST = 2**63 - 1


@asynccontextmanager
async def _router() -> AsyncIterator[tuple[Any, ModelSupervision]]:
    limits = StateLimits(stuck_seconds=1, silent_seconds=1, assumed_ttl_seconds=1)
    supervision = ModelSupervision(DesiredModels(), RouterState(time.monotonic, limits))
    server = GrpcServer("127.0.0.1:0")
    server.add(SERVICE_NAME, partial(add_ModelServiceServicer_to_server, ModelServicer(supervision)))
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel:
        yield ModelServiceStub(channel), supervision  # type: ignore[no-untyped-call]
    await server.drain(0)


def _report(**fields: Any) -> messages.SuperviseRequest:
    return messages.SuperviseRequest(**{"machine_id": "mac", "free_byte_count": 10**11, **fields})


async def _read_all(call: Any) -> None:
    while await call.read() is not grpc.aio.EOF:
        pass


async def _refusal(stub: Any, *reports: messages.SuperviseRequest) -> str:
    call = stub.Supervise()
    for report in reports:
        await call.write(report)
    await call.done_writing()
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await _read_all(call)
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    return str(refused.value.details())


@pytest.mark.parametrize(
    ("report", "field"),
    [
        (_report(epoch=MOST), "epoch: no router has ordered anything"),
        (_report(machine_id="../mac"), "machine_id: expected 1 to 63"),
        (_report(models=[MachineModel(name="m")] * 1025), "models: expected 1024 at most"),
        (_report(models=[MachineModel(name="m", weight_byte_count=-1)]), "models: 'm': expected numbers of bytes"),
        (_report(models=[MachineModel(name="m", shape=ModelShape(layer_count=1))]), "models.shape"),
        (_report(profile=NodeProfile(prefill_flops=float("nan"))), "profile.prefill_flops: must be positive"),
    ],
)
def test_what_a_machine_says_cannot_end_planning_for_all(report: messages.SuperviseRequest, field: str) -> None:
    """The field is named; the next model is planned as if it had said nothing."""

    async def main() -> None:
        async with _router() as (stub, supervision):
            supervision.want(DesiredModel(name="m", source="org/m"))
            assert field in await _refusal(stub, report)
            await supervision.decide()
            answer = await stub.ListModels(messages.ListModelsRequest(), timeout=20)
            assert answer.epoch < time.time_ns()
            assert not answer.machine_free_byte_counts

    asyncio.run(asyncio.wait_for(main(), 60))


def test_a_stream_is_one_machine_s() -> None:
    """One that named another with each report would have the router remember them all."""

    async def main() -> None:
        async with _router() as (stub, supervision):
            told = await _refusal(stub, _report(), _report(machine_id="mac--2"))
            assert "the same in all reports" in told
            assert not supervision.listed().machine_free_byte_counts

    asyncio.run(asyncio.wait_for(main(), 60))


@pytest.mark.parametrize("weights", [1, MOST])
@pytest.mark.parametrize("free", [-MOST, 0, MOST])
def test_numbers_without_sense_are_planned_with(weights: int, free: int) -> None:
    """No machine has room, or every one has; nothing ends."""
    limits = StateLimits(stuck_seconds=1, silent_seconds=1, assumed_ttl_seconds=1)
    supervision = ModelSupervision(DesiredModels(), RouterState(time.monotonic, limits))
    supervision.want(DesiredModel(name="m", source="org/m"))
    for machine in ("a", "b"):
        model = MachineModel(
            name="m",
            stage=messages.MODEL_STAGE_STORED,
            shape=shape_to_proto(LLAMA_3_1_8B),
            weight_byte_count=weights,
            total_byte_count=MOST,
        )
        supervision.take(AgentSession(), _report(machine_id=machine, free_byte_count=free, models=[model]))
    asyncio.run(supervision.decide())

    assert [each.desired.name for each in supervision.listed().models] == ["m"]


def test_a_plan_that_fails_is_not_the_last(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """The task would end unseen, and the router plan nothing from then on."""

    async def main() -> None:
        limits = StateLimits(stuck_seconds=1, silent_seconds=1, assumed_ttl_seconds=1)
        supervision = ModelSupervision(DesiredModels(), RouterState(time.monotonic, limits))
        decided = asyncio.Event()

        async def decide() -> None:
            if len(caplog.records) < 2:
                raise ZeroDivisionError
            decided.set()

        monkeypatch.setattr(supervision, "decide", decide)
        monkeypatch.setattr("baton.router.models.supervision._DECIDE_SECONDS", 0.0)
        running = asyncio.create_task(supervision.run())
        async with asyncio.timeout(20):
            await decided.wait()
        running.cancel()

    asyncio.run(main())
    assert "plan_failed" in caplog.text
