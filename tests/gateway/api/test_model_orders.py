"""POST /v1/models/load and /unload."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from baton.gateway.api.endpoint import Access, Endpoint
from baton.gateway.api.model_orders import LoadBody, ModelOrders, UnloadBody
from baton.internal.v1.model_service_pb2 import (
    MODEL_STAGE_STORED,
    ChangeModelRequest,
    ChangeModelResponse,
    DesiredModel,
    ModelState,
)
from gateway.fake_cluster import FakeCluster, Loop
from gateway.rest import ask


class FakeRouter:
    """Answers that a model is stored."""

    def __init__(self) -> None:
        self.asked: list[ChangeModelRequest] = []

    async def change_model(self, request: ChangeModelRequest) -> ChangeModelResponse:
        """Remember what is asked."""
        self.asked.append(request)
        name = request.unload or request.forget or request.load.name
        state = ModelState(desired=DesiredModel(name=name), stage=MODEL_STAGE_STORED, problem="waits")
        return ChangeModelResponse(model=state, forecast=["it fits"] if request.is_dry_run else [])


async def _answer(endpoint: Endpoint, body: object) -> Any:
    sent: list[tuple[int, bytes]] = []
    response = SimpleNamespace(send=lambda status, content: sent.append((status, content)))
    await endpoint.answer(SimpleNamespace(body=body, response=response))  # type: ignore[arg-type]
    ((status, content),) = sent
    return status, json.loads(content)


def test_an_administrator_changes_what_is_wanted() -> None:
    """The router hears of it, and the answer says how the model stands."""

    async def run() -> None:
        router = FakeRouter()
        load, unload = ModelOrders(router).endpoints()  # type: ignore[arg-type]
        body = LoadBody(
            "llama", "/models/llama", min_replicas=2, machines=["mac"], on_demand=True, keep_alive_seconds=9
        )
        loaded, gone = await _answer(load, body), await _answer(unload, UnloadBody("llama"))

        assert {load.access, unload.access} == {Access.ADMIN}
        expected = {"model": "llama", "state": "stored", "cause": "waits", "forecast": []}
        assert loaded == gone == (200, expected)
        for endpoint, tried in ((load, LoadBody("llama", dry_run=True)), (unload, UnloadBody("llama", dry_run=True))):
            assert await _answer(endpoint, tried) == (200, {**expected, "forecast": ["it fits"]})
            assert router.asked[-1].is_dry_run
        wanted = router.asked[0].load
        assert (wanted.source, wanted.min_replica_count, list(wanted.pinned_machines)) == ("/models/llama", 2, ["mac"])
        assert (wanted.is_on_demand, wanted.keep_alive.seconds) == (True, 9)
        assert router.asked[1].unload == "llama"
        await _answer(unload, UnloadBody("llama", forget=True))
        assert router.asked[-1].forget == "llama"

    asyncio.run(run())


@pytest.mark.parametrize("field", [{"min_replicas": -1}, {"max_replicas": "many"}, {"replicas": 1}])
def test_a_wrong_field_is_refused(field: dict[str, object]) -> None:
    """Before a router is asked."""
    with pytest.raises(msgspec.ValidationError, match=next(iter(field))):
        msgspec.convert({"model": "llama", **field}, LoadBody)


def test_a_client_changes_nothing(loop: Loop, cluster: FakeCluster, tmp_path: Path) -> None:
    """Whatever model it names; a body is not even read for that."""
    (tmp_path / "keys").write_text("me:sk-mine\n")
    with loop.running(cluster, api_keys_file=tmp_path / "keys") as running:
        for verb in ("load", "unload"):
            answer = ask(running, f"/v1/models/{verb}", {"model": "x"}, headers={"authorization": "Bearer sk-mine"})
            assert answer.error == (403, None, "admin_key_needed")
            assert ask(running, f"/v1/models/{verb}", {"model": "x"}).status == 401
