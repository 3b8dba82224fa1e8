"""Requests that end passes or processes: tried once more, then refused; others beside them are not."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import threading
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import openai
import pytest

from baton.errors import BatonError, NonFiniteLogitsError, PassFailedError
from baton.gateway.cluster.node_links import DecodeCall
from baton.gateway.cluster.quarantine import REFUSED_SECONDS, Quarantine
from baton.gateway.server import RunningGateway
from baton.internal.v1.decode_service_pb2 import ServeResponse
from baton.telemetry.metrics import Metrics
from baton.v1.generation_service_pb2 import GenerateRequest
from baton.v1.generation_service_pb2_grpc import GenerationServiceStub
from gateway.fake_cluster import MODEL, FakeCluster, Loop, echo_token, generation_of, tokens

PROMPT, POISON = [1, 2, 3, 4, 5], [6, 7]
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
    return _call(gateway, "POST", path, json.dumps({"model": MODEL, **BODIES[path]}))


def _call(gateway: RunningGateway, method: str, path: str, body: str | None = None, key: str = "") -> tuple[int, Any]:
    headers = _HEADERS | ({"authorization": f"Bearer {key}"} if key else {})
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", gateway.http_port, timeout=20)) as connection:
        connection.request(method, path, body, headers)
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
    assert _get(gateway, "/state/quarantine")[""][entry["fingerprint"]]["is_refused"]


def test_people_see_each_tenant_s_own(loop: Loop, cluster: FakeCluster, tmp_path: Path) -> None:
    """Two that send the same request are two cases, in both views."""
    keys = tmp_path / "keys"
    keys.write_text("alice:secret-a\nbob:secret-b\nops:secret-o admin\n")
    keys.chmod(0o600)
    _fail(cluster, PassFailedError("it raises"))
    with loop.running(cluster, api_keys_file=keys) as gateway:
        for key in ("secret-a", "secret-b"):
            body = json.dumps({"model": MODEL, **BODIES["/v1/completions"]})
            assert _call(gateway, "POST", "/v1/completions", body, key)[0] == 422
        shown = _call(gateway, "GET", "/state/quarantine", key="secret-o")[1]
        cases = [(tenant, each["tenant"]) for tenant, found in shown.items() for each in found.values()]

    assert cases == [("alice", "alice"), ("bob", "bob")]


def test_a_connection_that_is_cut_is_no_fall(
    client: openai.OpenAI, cluster: FakeCluster, gateway: RunningGateway
) -> None:
    """The process at its other end answers: nothing has ended there."""

    async def cut(request: Any) -> AsyncIterator[Any]:
        if len(_seen(cluster)) > 1:
            yield lambda stream_id: ServeResponse(alone_stream_id=stream_id)
        raise ConnectionResetError
        yield tokens(0, [1])

    for node in cluster.decodes:
        node.script = cut
    with pytest.raises(openai.InternalServerError):
        client.completions.create(model=MODEL, prompt=POISON)

    assert len(_seen(cluster)) == 3
    assert _quarantine(gateway) == []


def test_who_was_beside_it_is_not_charged(
    client: openai.OpenAI, cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The node has said whose the pass is: of what ended with it, only that is refused; its neighbour loses nothing."""
    monkeypatch.setattr(DecodeCall, "_answers", lambda _call: asyncio.sleep(0, False))
    is_over = threading.Event()

    async def serve(request: Any) -> AsyncIterator[Any]:
        if list(request.prompt_token_ids) == POISON:
            if request.is_suspect:
                yield lambda stream_id: ServeResponse(alone_stream_id=stream_id)
            raise ConnectionResetError
        yield tokens(len(request.output_token_ids), [echo_token(request, len(request.output_token_ids))])
        await asyncio.to_thread(is_over.wait)
        async for response in cluster.decodes[0].echo(request):
            yield response

    for node in cluster.decodes:
        node.script = serve
    neighbour = client.completions.create(model=MODEL, prompt=PROMPT, max_tokens=9, stream=True)
    first = next(iter(neighbour)).choices[0].text
    with pytest.raises(openai.UnprocessableEntityError):
        client.completions.create(model=MODEL, prompt=POISON)
    is_over.set()

    assert first + "".join(chunk.choices[0].text for chunk in neighbour if chunk.choices) == '"#$%&"#$%'
    assert len([each for each in _seen(cluster) if list(each.prompt_token_ids) == POISON]) == 2


@pytest.mark.parametrize("error", [ConnectionResetError(), NonFiniteLogitsError("NaN")])
def test_equal_requests_that_one_node_fails_together_are_one_fall(
    client: openai.OpenAI, cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """Choices of one request, for example: each is tried on another node."""
    monkeypatch.setattr(DecodeCall, "_answers", lambda _call: asyncio.sleep(0, False))
    together = asyncio.Barrier(6)

    async def fail(request: Any) -> AsyncIterator[Any]:
        await together.wait()
        raise error
        yield

    cluster.decodes[0].script = fail
    answer = client.completions.create(model=MODEL, prompt=PROMPT, max_tokens=3, n=6)

    assert [choice.text for choice in answer.choices] == ['"#$'] * 6
    assert len(cluster.decodes[1].requests) == 6


def test_who_waits_with_a_request_that_is_refused_is_refused(
    loop: Loop, model_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else each of its equals, which come at once, would end a process of its own."""
    monkeypatch.setattr(DecodeCall, "_answers", lambda _call: asyncio.sleep(0, False))
    cluster, together = FakeCluster(model_dir, num_nodes=3), asyncio.Barrier(2)

    async def fall(request: Any) -> AsyncIterator[Any]:
        if await together.wait():
            await asyncio.sleep(60)
        if request.is_suspect:
            yield lambda stream_id: ServeResponse(alone_stream_id=stream_id)
        raise ConnectionResetError

    for node in cluster.decodes:
        node.script = fall
    with loop.running(cluster) as gateway, ThreadPoolExecutor(2) as threads:
        answers = list(threads.map(lambda _: _post(gateway, "/v1/completions"), range(2)))

    assert [status for status, _ in answers] == [422, 422]
    assert [len(node.requests) for node in cluster.decodes] == [2, 2, 0]


def test_what_has_expired_costs_no_later_request_anything() -> None:
    """Whatever became of it: whose client went away comes back for no verdict."""
    now_seconds = 0.0
    quarantine = Quarantine(lambda: now_seconds, Metrics())
    with contextlib.suppress(BatonError):
        for _ in range(2):
            quarantine.judge(generation_of(POISON), PassFailedError("it raises"))
    quarantine.judge(generation_of(PROMPT), PassFailedError("it raises"))
    assert len(quarantine.entries()) == 2
    now_seconds = REFUSED_SECONDS
    quarantine.check(generation_of(POISON))

    assert not quarantine.cases


def _quarantine(gateway: RunningGateway) -> Any:
    return _get(gateway, "/ui/state")["quarantine"]


def _get(gateway: RunningGateway, path: str) -> Any:
    return _call(gateway, "GET", path)[1]
