"""What clients of every API are told by an overloaded cluster, and what the router is told of them."""

from __future__ import annotations

from typing import Any

import grpc
import pytest
from google.rpc import error_details_pb2, status_pb2

from baton.errors import OverloadedError
from baton.gateway.server import RunningGateway
from baton.rpc.status import error_from_rpc
from baton.v1 import generation_service_pb2 as messages
from baton.v1.generation_pb2 import FINISH_REASON_LENGTH, SamplingParameters
from baton.v1.generation_service_pb2_grpc import GenerationServiceStub
from gateway.fake_cluster import MODEL, FakeCluster
from gateway.rest import ask

MESSAGES = [{"role": "user", "content": "hello"}]
CALLS: list[tuple[str, dict[str, Any], str]] = [
    ("/v1/chat/completions", {"messages": MESSAGES}, "rate_limit_error"),
    ("/v1/completions", {"prompt": "hello"}, "rate_limit_error"),
    ("/v1/messages", {"messages": MESSAGES, "max_tokens": 4}, "rate_limit_error"),
    ("/v1/responses", {"input": "hello"}, "rate_limit_error"),
]
OVERLOADED = OverloadedError(
    "overloaded: ask again in 7 s",
    reason="OVERLOADED",
    metadata={"retry_after_seconds": "7", "wait_seconds": "6.5"},
)


@pytest.mark.parametrize("is_stream", [False, True])
@pytest.mark.parametrize(("path", "body", "kind"), CALLS)
def test_a_refusal_is_429_with_retry_after_in_every_api(
    gateway: RunningGateway, cluster: FakeCluster, path: str, body: dict[str, Any], kind: str, is_stream: bool
) -> None:
    """Also where a stream was asked for: nothing of it has begun."""
    cluster.router.refusal = OVERLOADED

    refused = ask(gateway, path, {"model": MODEL, "stream": is_stream, **body})

    assert (refused.status, refused.headers["retry-after"]) == (429, "7")
    assert refused.body["error"]["type"] == kind
    assert "ask again in 7 s" in refused.body["error"]["message"]


def test_a_refusal_over_grpc_has_retry_info(gateway: RunningGateway, cluster: FakeCluster) -> None:
    """Beside the reason."""
    cluster.router.refusal = OVERLOADED
    with (
        grpc.insecure_channel(f"127.0.0.1:{gateway.grpc_port}") as channel,
        pytest.raises(grpc.RpcError) as failure,
    ):
        list(GenerationServiceStub(channel).Generate(messages.GenerateRequest(text="hello"), timeout=20))

    assert failure.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert error_from_rpc(failure.value).reason == "OVERLOADED"
    details = dict(failure.value.trailing_metadata())["grpc-status-details-bin"]
    retry = error_details_pb2.RetryInfo()
    assert any(detail.Unpack(retry) for detail in status_pb2.Status.FromString(details).details)
    assert retry.retry_delay.seconds == 7


def test_a_flood_of_refused_requests_is_answered_without_the_router(
    gateway: RunningGateway, cluster: FakeCluster
) -> None:
    """The second one comes within a moment."""
    cluster.router.refusal = OVERLOADED
    answers = [ask(gateway, "/v1/completions", {"model": MODEL, "prompt": "hello"}) for _ in range(30)]

    assert {answer.status for answer in answers} == {429}
    assert len(cluster.router.requests) < 30


def test_a_degraded_request_is_cut_and_told(gateway: RunningGateway, cluster: FakeCluster) -> None:
    """In the answer's `baton`, and over gRPC in its end."""
    cluster.router.degraded_max_tokens = 3
    body = ask(gateway, "/v1/completions", {"model": MODEL, "prompt": "hello", "max_tokens": 9}).body
    with grpc.insecure_channel(f"127.0.0.1:{gateway.grpc_port}") as channel:
        request = messages.GenerateRequest(text="hello", sampling=SamplingParameters(max_token_count=9))
        end = list(GenerationServiceStub(channel).Generate(request, timeout=20))[-1].finished
        short = messages.GenerateRequest(text="hello", sampling=SamplingParameters(max_token_count=2))
        uncut = list(GenerationServiceStub(channel).Generate(short, timeout=20))[-1].finished

    assert (body["usage"]["completion_tokens"], body["baton"]["degraded_max_tokens"]) == (3, 3)
    assert body["choices"][0]["finish_reason"] == "length"
    assert (end.degraded_max_token_count, end.reason) == (3, FINISH_REASON_LENGTH)
    assert (uncut.degraded_max_token_count, uncut.usage.completion_token_count) == (0, 2)


def test_the_router_learns_a_requests_objectives(gateway: RunningGateway, cluster: FakeCluster) -> None:
    """From headers of REST and metadata of gRPC."""
    headers = {"x-baton-ttft-seconds": "0.5", "x-baton-tpot-seconds": "0.02"}
    ask(gateway, "/v1/completions", {"model": MODEL, "prompt": "hello", "max_tokens": 2}, headers=headers)
    with grpc.insecure_channel(f"127.0.0.1:{gateway.grpc_port}") as channel:
        call = messages.GenerateRequest(text="hello", sampling=SamplingParameters(max_token_count=2))
        list(GenerationServiceStub(channel).Generate(call, metadata=list(headers.items()), timeout=20))
    ask(gateway, "/v1/completions", {"model": MODEL, "prompt": "hello", "max_tokens": 2})

    rest, grpc_call, plain = cluster.router.requests
    for seen in (rest, grpc_call):
        assert (seen.ttft_objective.ToMilliseconds(), seen.tpot_objective.ToMilliseconds()) == (500, 20)
    assert [field.name for field, _ in plain.ListFields() if "objective" in field.name] == []


@pytest.mark.parametrize("value", ["0", "nan", "fast", "4000", "-1", ""])
def test_a_bad_objective_is_refused_by_name(gateway: RunningGateway, value: str) -> None:
    """It is not taken for none."""
    body = {"model": MODEL, "prompt": "hello"}
    refused = ask(gateway, "/v1/completions", body, headers={"x-baton-ttft-seconds": value})

    assert refused.error == (400, "x-baton-ttft-seconds", "invalid_value")
