"""The access log and GET /metrics."""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc
import pytest

from baton.gateway.access.admission import MAX_TOLD_FIELDS, AccessLog, RequestContext
from baton.gateway.server import RunningGateway
from baton.telemetry.metrics import Metrics
from baton.v1 import generation_service_pb2 as messages
from baton.v1.generation_service_pb2_grpc import GenerationServiceStub
from gateway.fake_cluster import MODEL, FakeCluster, Loop, echo_token, tokens
from gateway.rest import ask

TEXT = {"model": MODEL, "prompt": [104, 105, 106], "max_tokens": 4}


def _values(gateway: RunningGateway) -> dict[str, float]:
    """Return all samples by name and labels."""
    lines = ask(gateway, "/metrics").data.decode().splitlines()
    samples = (line.rpartition(" ") for line in lines if not line.startswith("#"))
    return {name: float(value) for name, _, value in samples}


def _wait(is_true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not is_true():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def _lines(caplog: pytest.LogCaptureFixture, route: str) -> list[str]:
    messages = [record.getMessage() for record in caplog.records if record.name == "baton.gateway.access.admission"]
    return [message for message in messages if f"route={route} " in message]


def test_metrics_count_requests_tokens_and_times(gateway: RunningGateway) -> None:
    """In Prometheus's text format, under the names of telemetry/names.py."""
    for fields in ({}, {"n": 2}, {"top_p": 7}):
        ask(gateway, "/v1/completions", TEXT | fields)
    ask(gateway, "/nowhere")
    reply, values = ask(gateway, "/metrics"), _values(gateway)

    served = 'baton_gateway_request_duration_seconds_count{http_route="/v1/completions",baton_status="200"}'
    assert values[served] == 2
    assert values[served.replace("200", "400")] == 1
    assert values['baton_gateway_request_duration_seconds_count{http_route="unknown",baton_status="404"}'] == 1
    assert values["baton_gateway_prompt_tokens_total"] == 6
    assert values["baton_gateway_output_tokens_total"] == 12
    assert values["baton_gateway_active_requests"] == 1  # the one that asks
    assert values[f'baton_gateway_model_requests{{gen_ai_request_model="{MODEL}"}}'] == 0
    assert values[f'gen_ai_server_time_to_first_token_seconds_count{{gen_ai_request_model="{MODEL}"}}'] == 3
    assert reply.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert "# TYPE baton_gateway_prompt_tokens_total counter\n" in reply.data.decode()


def test_buckets_of_a_histogram_are_cumulative(gateway: RunningGateway) -> None:
    """The last one holds all."""
    ask(gateway, "/v1/completions", TEXT)
    buckets = [value for name, value in _values(gateway).items() if "time_to_first_token_seconds_bucket" in name]

    assert buckets == sorted(buckets)
    assert buckets[-1] == 1


def test_each_request_has_one_line_at_debug(gateway: RunningGateway, caplog: pytest.LogCaptureFixture) -> None:
    """With its id, route, status, times and tokens."""
    with caplog.at_level(logging.DEBUG, "baton.gateway.access.admission"):
        ask(gateway, "/v1/completions", TEXT, headers={"x-request-id": "mine"})
        ask(gateway, "/v1/completions", TEXT | {"top_p": 7}, headers={"x-request-id": "bad"})
        _wait(lambda: len(_lines(caplog, "/v1/completions")) == 2)

    served, refused = _lines(caplog, "/v1/completions")
    assert re.fullmatch(
        r"request_ended request=mine key=- route=/v1/completions status=200 error=- seconds=\d+\.\d{4} "
        r"first_token_seconds=\d+\.\d{4} prompt_tokens=3 completion_tokens=4",
        served,
    )
    assert "request=bad key=- route=/v1/completions status=400 error=invalid_value " in refused
    assert refused.endswith("first_token_seconds=- prompt_tokens=0 completion_tokens=0")


def test_without_debug_nothing_is_written(gateway: RunningGateway, caplog: pytest.LogCaptureFixture) -> None:
    """A line per request is for those who ask for it."""
    with caplog.at_level(logging.INFO, "baton.gateway.access.admission"):
        ask(gateway, "/v1/completions", TEXT)

    assert _lines(caplog, "/v1/completions") == []


def test_a_call_over_grpc_is_told_alike(gateway: RunningGateway, caplog: pytest.LogCaptureFixture) -> None:
    """Its status by name; the route is the method."""
    method = "baton.v1.GenerationService/Generate"
    with (
        caplog.at_level(logging.DEBUG, "baton.gateway.access.admission"),
        grpc.insecure_channel(f"127.0.0.1:{gateway.grpc_port}") as channel,
    ):
        stub = GenerationServiceStub(channel)
        request = messages.GenerateRequest(text="hello", sampling={"max_token_count": 2})
        list(stub.Generate(request, timeout=20))
        with pytest.raises(grpc.RpcError):
            list(stub.Generate(messages.GenerateRequest(text="x", model="other"), timeout=20))
        _wait(lambda: len(_lines(caplog, method)) == 2)

    served, refused = _lines(caplog, method)
    assert "status=OK error=- " in served
    assert served.endswith("completion_tokens=2")
    assert "status=NOT_FOUND error=MODEL_NOT_FOUND " in refused


def test_tokens_of_a_cancelled_call_are_counted(
    loop: Loop, cluster: FakeCluster, caplog: pytest.LogCaptureFixture
) -> None:
    """They were generated and sent."""

    async def hang(request: Any) -> AsyncIterator[Any]:
        yield tokens(0, [echo_token(request, 0)])
        await asyncio.sleep(60)

    cluster.decodes[0].script = hang
    with loop.running(cluster) as running, grpc.insecure_channel(f"127.0.0.1:{running.grpc_port}") as channel:
        with caplog.at_level(logging.DEBUG, "baton.gateway.access.admission"):
            call = GenerationServiceStub(channel).Generate(messages.GenerateRequest(text="hello"), timeout=20)
            next(call)
            call.cancel()
            _wait(lambda: bool(_lines(caplog, "baton.v1.GenerationService/Generate")))
        values = _values(running)

    assert values["baton_gateway_output_tokens_total"] == 1
    (line,) = _lines(caplog, "baton.v1.GenerationService/Generate")
    assert "status=CANCELLED " in line


def test_names_that_clients_make_up_fill_neither_log_nor_memory(caplog: pytest.LogCaptureFixture) -> None:
    """The first ones are told of."""
    caplog.set_level(logging.INFO, "baton.gateway")
    access = AccessLog(Metrics(), time.monotonic)
    for index in range(MAX_TOLD_FIELDS + 9):
        with access.watch(RequestContext(route="/made-up", ignored=[f"field-{index}"])):
            pass

    told = [each for each in caplog.messages if each.startswith("field_ignored")]
    assert len(told) == MAX_TOLD_FIELDS
    assert "field-0" in told[0]
