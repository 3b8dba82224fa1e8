"""What outlasts the grace of a gateway that stops."""

from __future__ import annotations

import asyncio
import http.client
import json
import threading
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest

from baton.gateway import server
from baton.gateway.access.admission import ANYBODY, Deadlines
from baton.gateway.server import RunningGateway
from baton.rpc.status import error_info
from baton.v1 import generation_service_pb2 as messages
from baton.v1.generation_service_pb2_grpc import GenerationServiceStub
from gateway.fake_cluster import MODEL, FakeCluster, Loop, echo_token, tokens


@pytest.fixture(autouse=True)
def long_farewell(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave a busy machine time to tell clients: what is told counts here, not within which second."""
    monkeypatch.setattr(server, "_FAREWELL_SECONDS", 20.0)


async def _endless(request: Any) -> AsyncIterator[Any]:
    yield tokens(0, [echo_token(request, 0)])
    await asyncio.sleep(60)


def _begin(gateway: RunningGateway, *, is_stream: bool) -> http.client.HTTPConnection:
    connection = http.client.HTTPConnection("127.0.0.1", gateway.http_port, timeout=20)
    body = {"model": MODEL, "prompt": [71, 72], "max_tokens": 9, "stream": is_stream}
    connection.request("POST", "/v1/completions", json.dumps(body), {"content-type": "application/json"})
    return connection


def test_answers_that_outlast_the_grace_say_so(loop: Loop, cluster: FakeCluster) -> None:
    """A stream by an event with OpenAI's error object, a whole answer by 503; both end properly."""
    node = cluster.decodes[0]
    node.script = _endless
    with loop.running(cluster, drain_seconds=0.2) as running:
        stream, whole = _begin(running, is_stream=True), _begin(running, is_stream=False)
        events = stream.getresponse()
        assert events.readline().startswith(b"data: ")
        while len(node.requests) < 2:
            threading.Event().wait(0.01)
    last = json.loads(events.read().split(b"data: ")[-1])
    answer = whole.getresponse()
    error = json.loads(answer.read())["error"]
    stream.close()
    whole.close()

    assert last["error"]["code"] == "draining"
    assert "shutting down" in last["error"]["message"]
    assert answer.status == 503
    assert error["code"] == "draining"


def test_calls_that_outlast_the_grace_get_a_status(loop: Loop, cluster: FakeCluster) -> None:
    """UNAVAILABLE DRAINING."""
    cluster.decodes[0].script = _endless
    with loop.running(cluster, drain_seconds=0.2) as running:
        channel = grpc.insecure_channel(f"127.0.0.1:{running.grpc_port}")
        call = GenerationServiceStub(channel).Generate(messages.GenerateRequest(text="hi"), timeout=20)
        assert next(call).token_ids
    with channel, pytest.raises(grpc.RpcError) as caught:
        next(call)

    info = error_info(caught.value)  # type: ignore[arg-type]
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    assert info is not None
    assert info.reason == "DRAINING"


def test_a_request_that_comes_after_the_cut_ends_at_once() -> None:
    """On a connection that was open already."""

    async def run() -> None:
        deadlines = Deadlines(60)
        deadlines.cut()
        with pytest.raises(Exception, match="shutting down"):
            async with deadlines.limit(ANYBODY):
                await asyncio.sleep(20)

    asyncio.run(run())


def test_a_request_that_takes_longer_than_it_may_says_so_and_no_more() -> None:
    """Neither that the gateway stops nor that its key is gone."""

    async def run() -> None:
        deadlines = Deadlines(0.01)
        with pytest.raises(TimeoutError):
            async with deadlines.limit(ANYBODY):
                await asyncio.sleep(20)

    asyncio.run(run())
