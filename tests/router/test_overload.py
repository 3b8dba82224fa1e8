"""Overload over a real channel: what a router refuses, cuts, and places all the same."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import grpc
import pytest

from baton.errors import OverloadedError
from baton.internal.v1 import router_service_pb2_grpc as service
from baton.rpc.status import error_from_rpc
from router.samples import DGX, MAC
from router.test_servicer import place_request, register, with_router

MAX_PLACED = 64
"""More than any objective of these tests leaves room for: a prompt takes 1.5 s."""


async def placed(stub: service.RouterServiceStub, placements: list[Any], *lengths: int) -> None:
    """Place requests with these limits of output in turn until one is refused; keep the placements of the others."""
    for number in range(MAX_PLACED):
        request = place_request(max_token_count=lengths[number % len(lengths)])
        placements.append((await stub.Place(request, timeout=20)).placement)


def overloaded(then: Callable[[service.RouterServiceStub, OverloadedError], Awaitable[None]], **settings: Any) -> None:
    """Place requests until one is refused, and go on from there."""

    async def client(stub: service.RouterServiceStub, _channel: grpc.aio.Channel) -> None:
        _nodes = [await register(stub, node) for node in (MAC, DGX)]
        with pytest.raises(grpc.aio.AioRpcError) as failure:
            await placed(stub, [], 32)
        assert failure.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        error = error_from_rpc(failure.value)
        assert isinstance(error, OverloadedError)
        await then(stub, error)

    with_router(client, slo_ttft_seconds=5.0, **settings)


def test_shedding_says_why_and_when_to_ask_again() -> None:
    """In seconds, whole ones and exactly; a client's patience is another matter than its objective."""

    async def then(stub: service.RouterServiceStub, error: OverloadedError) -> None:
        assert error.reason == "OVERLOADED"
        assert 0 < float(error.metadata["wait_seconds"]) <= int(error.metadata["retry_after_seconds"]) <= 3
        patient = place_request()
        patient.ttft_objective.FromSeconds(60)
        assert (await stub.Place(patient, timeout=20)).placement.placement_id

    overloaded(then, overload_policy="shed")


def test_who_only_asks_and_who_was_admitted_before_are_not_refused() -> None:
    """A plan and an attempt that takes over from a failed node."""

    async def then(stub: service.RouterServiceStub, _error: OverloadedError) -> None:
        for fields in ({"is_dry_run": True}, {"is_admitted": True}):
            assert (await stub.Place(place_request(**fields), timeout=20)).placement.placement_id

    overloaded(then, overload_policy="shed")


def test_what_is_refused_of_a_hot_model_takes_no_room_from_a_cold_one() -> None:
    """Its own nodes take as much of it as they would without the hot one, of which nine in ten are refused by then."""
    taken: dict[str, list[Any]] = {"llama": [], "cold": []}

    async def fill(stub: service.RouterServiceStub, model: str) -> None:
        while True:
            taken[model].append(await stub.Place(place_request(model_id=model), timeout=20))

    async def client(stub: service.RouterServiceStub, _channel: grpc.aio.Channel) -> None:
        cold = [replace(node, node_id=f"{node.node_id}-cold", model_id="cold") for node in (MAC, DGX)]
        _nodes = [await register(stub, node) for node in (MAC, DGX, *cold)]
        for _ in range(40):
            with pytest.raises(grpc.aio.AioRpcError, match="overloaded"):
                await fill(stub, "llama")
        with pytest.raises(grpc.aio.AioRpcError, match="overloaded"):
            await fill(stub, "cold")

    with_router(client, slo_ttft_seconds=20.0, overload_policy="shed")

    assert len(taken["cold"]) >= len(taken["llama"]) > 4


def test_degrading_cuts_before_it_refuses() -> None:
    """To the setting, and never to more than was asked for."""
    placements: list[Any] = []

    async def client(stub: service.RouterServiceStub, _channel: grpc.aio.Channel) -> None:
        _nodes = [await register(stub, node) for node in (MAC, DGX)]
        with pytest.raises(grpc.aio.AioRpcError):
            await placed(stub, placements, 32, 4)

    with_router(client, slo_ttft_seconds=5.0, overload_policy="degrade", degraded_max_tokens=8)

    cuts = [placement.degraded_max_token_count for placement in placements]
    assert cuts[0] == 0
    assert {8, 4} <= set(cuts)
    assert {placement.degraded_reason for placement in placements} == {"", "OVERLOADED"}


@pytest.mark.parametrize(
    ("field", "seconds"), [("ttft_objective", -1), ("ttft_objective", 3601), ("tpot_objective", 61)]
)
def test_an_objective_out_of_range_is_refused_by_name(field: str, seconds: int) -> None:
    """Whatever the policy."""

    async def client(stub: service.RouterServiceStub, _channel: grpc.aio.Channel) -> None:
        request = place_request()
        getattr(request, field).FromSeconds(seconds)
        with pytest.raises(grpc.aio.AioRpcError, match=field):
            await stub.Place(request, timeout=20)

    with_router(client)


def test_round_robin_takes_every_prefill_node_in_turn() -> None:
    """Also one that costs more."""

    async def client(stub: service.RouterServiceStub, _channel: grpc.aio.Channel) -> None:
        _nodes = [await register(stub, node) for node in (MAC, DGX, replace(DGX, node_id="old", profile=MAC.profile))]
        found = [(await stub.Place(place_request(), timeout=20)).placement.prefill_node_id for _ in range(4)]
        assert found == ["dgx", "old"] * 2

    with_router(client, prefill_policy="round-robin")
