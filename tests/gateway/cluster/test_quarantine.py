"""Requests that end passes or processes: tried once more, then refused; others beside them are not."""

from __future__ import annotations

import http.client
import json
from collections.abc import AsyncIterator
from typing import Any

import grpc
import openai
import pytest

from baton.errors import BatonError, NonFiniteLogitsError, PassFailedError
from baton.gateway.server import RunningGateway
from baton.v1.generation_service_pb2 import GenerateRequest
from baton.v1.generation_service_pb2_grpc import GenerationServiceStub
from gateway.fake_cluster import MODEL, FakeCluster

PROMPT = [104, 105, 106, 107, 108]
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "hi"}]},
    "/v1/completions": {"prompt": PROMPT},
    "/v1/messages": {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 4},
    "/v1/responses": {"input": "hi"},
}

_HEADERS = {"content-type": "application/json"}


def _fail(cluster: FakeCluster, error: BatonError) -> None:
    async def fail(request: Any) -> AsyncIterator[Any]:
        raise error
        yield

    for node in cluster.decodes:
        node.script = fail


def _post(gateway: RunningGateway, path: str) -> tuple[int, Any]:
    connection = http.client.HTTPConnection("127.0.0.1", gateway.http_port, timeout=20)
    connection.request("POST", path, json.dumps({"model": MODEL, **BODIES[path]}), _HEADERS)
    answer = connection.getresponse()
    return answer.status, json.loads(answer.read())


def _seen(cluster: FakeCluster) -> list[Any]:
    return [request for node in cluster.decodes for request in node.requests]


@pytest.mark.parametrize(
    ("path", "error"),
    [*((path, PassFailedError("it raises")) for path in BODIES), ("/v1/completions", NonFiniteLogitsError("NaN"))],
)
def test_a_request_that_fails_twice_is_refused_by_every_api(
    gateway: RunningGateway, cluster: FakeCluster, path: str, error: BatonError
) -> None:
    """With another node between, without what caches hold, by itself; then at once, by its fingerprint."""
    _fail(cluster, error)
    status, body = _post(gateway, path)
    first, second = _seen(cluster)

    assert status == 422
    assert (first.is_suspect, first.bypass_prefix_cache) == (False, False)
    assert (second.is_suspect, second.bypass_prefix_cache) == (True, True)
    assert [len(node.requests) for node in cluster.decodes] == [1, 1]
    assert cluster.router.requests[1].needs_local_prefill
    fingerprint = body["error"]["message"].rpartition(" ")[2]
    assert len(fingerprint) == 16
    assert _post(gateway, path)[0] == 422
    assert len(_seen(cluster)) == 2


def test_grpc_refuses_it_as_a_failed_precondition(gateway: RunningGateway, cluster: FakeCluster) -> None:
    """Which no client tries again by itself."""
    _fail(cluster, PassFailedError("it raises"))
    with grpc.insecure_channel(f"127.0.0.1:{gateway.grpc_port}") as channel:
        call = GenerationServiceStub(channel).Generate(GenerateRequest(text="hello"), timeout=20)  # type: ignore[no-untyped-call]
        with pytest.raises(grpc.RpcError) as refusal:
            list(call)

    assert refusal.value.code() is grpc.StatusCode.FAILED_PRECONDITION
    assert "fingerprint" in (refusal.value.details() or "")


def test_a_failure_that_another_node_does_not_have_is_not_noticed(
    client: openai.OpenAI, cluster: FakeCluster, gateway: RunningGateway
) -> None:
    """And nothing of it is remembered."""
    _fail(cluster, NonFiniteLogitsError("NaN"))
    cluster.decodes[1].script = None

    answer = client.completions.create(model=MODEL, prompt=PROMPT, max_tokens=3)

    assert answer.usage is not None
    assert answer.usage.completion_tokens == 3
    assert _quarantine(gateway) == []


def test_people_see_what_is_refused(gateway: RunningGateway, cluster: FakeCluster) -> None:
    """On the page and in exo's state."""
    _fail(cluster, PassFailedError("it raises"))
    _, body = _post(gateway, "/v1/completions")
    (entry,) = _quarantine(gateway)

    assert entry["is_refused"]
    assert entry["falls"] == 2
    assert body["error"]["message"].endswith(entry["fingerprint"])
    assert _get(gateway, "/state/quarantine")[entry["fingerprint"]]["is_refused"]


def _quarantine(gateway: RunningGateway) -> Any:
    return _get(gateway, "/ui/state")["quarantine"]


def _get(gateway: RunningGateway, path: str) -> Any:
    connection = http.client.HTTPConnection("127.0.0.1", gateway.http_port, timeout=20)
    connection.request("GET", path)
    return json.loads(connection.getresponse().read())
