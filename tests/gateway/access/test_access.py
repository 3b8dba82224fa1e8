"""Who may ask a gateway, and how much, through both APIs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import grpc
import openai
import pytest

from baton.errors import AuthenticationError, OverloadedError
from baton.gateway.server import RunningGateway
from baton.rpc.status import error_from_rpc
from baton.v1 import generation_service_pb2 as messages
from baton.v1.generation_service_pb2_grpc import GenerationServiceStub
from gateway.fake_cluster import MODEL, FakeCluster, Loop, echo_token, tokens
from gateway.rest import ask

ALICE = {"authorization": "Bearer secret-a"}
BOB = {"x-api-key": "secret-b"}
TEXT = {"model": MODEL, "prompt": "hello", "max_tokens": 2}


@pytest.fixture
def keys_file(tmp_path: Path) -> Path:
    """Return a file with two keys."""
    path = tmp_path / "keys"
    path.write_text("alice:secret-a\nbob:secret-b\n")
    return path


@pytest.fixture
def locked(loop: Loop, cluster: FakeCluster, keys_file: Path) -> Iterator[RunningGateway]:
    """Run a gateway that asks for keys and gives each two requests per minute, one at a time."""
    limits = {"key_requests_per_minute": 2, "key_max_concurrent_requests": 1}
    with loop.running(cluster, api_keys_file=keys_file, **limits) as running:
        yield running


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/models", "/v1/models/x", "/tokenize", "/nowhere"])
def test_without_a_key_nothing_is_told(locked: RunningGateway, cluster: FakeCluster, path: str) -> None:
    """401 with OpenAI's code, for any path."""
    body = None if "models" in path else TEXT
    replies = [ask(locked, path, body), ask(locked, path, body, headers={"authorization": "Bearer wrong"})]

    assert [reply.error for reply in replies] == [(401, None, "invalid_api_key")] * 2
    assert replies[0].headers["www-authenticate"] == "Bearer"
    assert cluster.router.requests == []


@pytest.mark.parametrize("path", ["/health", "/ready", "/version"])
def test_probes_need_no_key(locked: RunningGateway, path: str) -> None:
    """Kubernetes has none."""
    assert ask(locked, path).status in (200, 503)


def test_a_key_is_served_and_the_official_client_knows_the_refusal(locked: RunningGateway) -> None:
    """Its own class of error."""
    url = f"http://127.0.0.1:{locked.http_port}/v1"
    with openai.OpenAI(base_url=url, api_key="secret-a", max_retries=0, timeout=20) as client:
        assert client.completions.create(model=MODEL, prompt="hello", max_tokens=2).choices[0].text
    with openai.OpenAI(base_url=url, api_key="x", max_retries=0) as client, pytest.raises(openai.AuthenticationError):
        client.models.list()


def test_a_key_that_asks_too_often_is_told_when_to_come_back(locked: RunningGateway) -> None:
    """429 with Retry-After, while other keys and lists of models are served."""
    statuses = [ask(locked, "/v1/completions", TEXT, headers=ALICE).status for _ in range(2)]
    refused = ask(locked, "/v1/completions", TEXT, headers=ALICE)

    assert statuses == [200, 200]
    assert refused.error == (429, None, "rate_limit_exceeded")
    assert refused.body["error"]["type"] == "rate_limit_error"
    assert 1 <= int(refused.headers["retry-after"]) <= 30
    assert ask(locked, "/v1/completions", TEXT, headers=BOB).status == 200
    assert ask(locked, "/v1/models", headers=ALICE).status == 200


def test_a_key_with_a_request_in_work_has_to_wait(locked: RunningGateway, cluster: FakeCluster) -> None:
    """Others do not; the call over gRPC counts like one over REST."""

    async def hang(request: Any) -> AsyncIterator[Any]:
        yield tokens(0, [echo_token(request, 0)])
        await asyncio.sleep(60)

    cluster.decodes[0].script = hang
    with grpc.insecure_channel(f"127.0.0.1:{locked.grpc_port}") as channel:
        stub = GenerationServiceStub(channel)
        metadata = [("authorization", "Bearer secret-a")]
        call = stub.Generate(messages.GenerateRequest(text="hello"), metadata=metadata, timeout=20)
        next(call)
        refused = ask(locked, "/v1/completions", TEXT, headers=ALICE)
        cluster.decodes[0].script = None
        served = ask(locked, "/v1/completions", TEXT, headers=BOB)
        with pytest.raises(grpc.RpcError) as failure:
            next(stub.Generate(messages.GenerateRequest(text="hello"), metadata=metadata, timeout=20))
        call.cancel()

    assert (refused.status, refused.headers["retry-after"]) == (429, "1")
    assert served.status == 200
    assert failure.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert isinstance(error_from_rpc(failure.value), OverloadedError)


@pytest.mark.parametrize("metadata", [[], [("authorization", "Bearer wrong")], [("authorization", "secret-a")]])
def test_grpc_asks_for_the_same_keys(locked: RunningGateway, metadata: Any) -> None:
    """UNAUTHENTICATED, for generations and lists; health needs none."""
    with grpc.insecure_channel(f"127.0.0.1:{locked.grpc_port}") as channel:
        stub = GenerationServiceStub(channel)
        calls = [
            lambda: list(stub.Generate(messages.GenerateRequest(text="x"), metadata=metadata, timeout=20)),
            lambda: stub.ListModels(messages.ListModelsRequest(), metadata=metadata, timeout=20),
        ]
        for call in calls:
            with pytest.raises(grpc.RpcError) as failure:
                call()
            assert failure.value.code() is grpc.StatusCode.UNAUTHENTICATED
            assert isinstance(error_from_rpc(failure.value), AuthenticationError)
        known = stub.ListModels(
            messages.ListModelsRequest(), metadata=[("authorization", "Bearer secret-b")], timeout=20
        )

    assert len(known.models) == 1


def test_a_key_that_is_added_works_without_a_restart(locked: RunningGateway, keys_file: Path) -> None:
    """Within seconds, while the gateway serves."""
    assert ask(locked, "/v1/models", headers={"x-api-key": "secret-c"}).status == 401
    keys_file.write_text("carol:secret-c\n")
    deadline = time.monotonic() + 20
    while ask(locked, "/v1/models", headers={"x-api-key": "secret-c"}).status != 200:
        assert time.monotonic() < deadline
        time.sleep(0.05)

    assert ask(locked, "/v1/models", headers=ALICE).status == 401
