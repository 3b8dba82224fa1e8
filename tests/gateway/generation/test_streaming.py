"""A stream gives each token when it has been generated, not when the next one has."""

from __future__ import annotations

import http.client
import json
from typing import Any

import grpc
import pytest

from baton.gateway.server import RunningGateway
from baton.v1 import generation_service_pb2 as messages
from baton.v1.generation_service_pb2_grpc import GenerationServiceStub
from gateway.fake_cluster import MODEL, FakeCluster
from gateway.steps import TIMEOUT_SECONDS, TOKENS, Steps

STREAMS: dict[str, dict[str, Any]] = {
    "/v1/completions": {"prompt": [1, 2], "max_tokens": 3},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "x"}], "max_tokens": 3},
    "/v1/responses": {"input": "x", "max_output_tokens": 16},
    "/v1/messages": {"messages": [{"role": "user", "content": "x"}], "max_tokens": 3},
}


@pytest.fixture
def steps(cluster: FakeCluster) -> Steps:
    """Have the first node generate step by step."""
    steps = Steps()
    cluster.decodes[0].script = steps.script
    return steps


@pytest.mark.parametrize("path", STREAMS)
def test_each_token_is_an_event_before_the_next_one_is_generated(
    gateway: RunningGateway, steps: Steps, path: str
) -> None:
    """In every form of answer."""
    connection = http.client.HTTPConnection("127.0.0.1", gateway.http_port, timeout=TIMEOUT_SECONDS)
    body = json.dumps({"model": MODEL, "stream": True, **STREAMS[path]})
    connection.request("POST", path, body, {"content-type": "application/json"})
    steps.next()
    response = connection.getresponse()
    for text in TOKENS.values():
        while f'"{text}"' not in (line := response.readline().decode()):
            assert line, f"the stream ended before {text}"
        steps.next()
    response.read()
    connection.close()


def test_each_token_is_a_message_before_the_next_one_is_generated(gateway: RunningGateway, steps: Steps) -> None:
    """By gRPC."""
    request = messages.GenerateRequest(text="x", sampling={"max_token_count": 3})
    with grpc.insecure_channel(f"127.0.0.1:{gateway.grpc_port}") as channel:
        call = GenerationServiceStub(channel).Generate(request, timeout=TIMEOUT_SECONDS)
        for text in TOKENS.values():
            steps.next()
            assert next(call).text == text
        assert next(call).HasField("finished")
