"""No log, metric or trace tells what anybody asked or was answered: at any level, and whatever goes wrong."""

from __future__ import annotations

import contextlib
import http.client
import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from attacks.victims import full
from baton.errors import UnavailableError
from baton.internal.v1.decode_service_pb2 import DecodeServiceGenerateRequest, DecodeServiceGenerateResponse
from baton.v1.generation_pb2 import SamplingParameters
from baton.v1.generation_service_pb2 import GenerateRequest
from baton.v1.generation_service_pb2_grpc import GenerationServiceStub
from checkpoints import checkpoint
from gateway.fake_cluster import FakeCluster, Loop
from gateway.http.raw_client import exchange, post
from system.cluster import Cluster
from text.tokenizer_folders import byte_level, save

CANARY = "canary-5f1d"
KEY = "key-canary-77aa"
MODEL = "tiny"
TOOL = {"type": "function", "function": {"name": "f", "description": CANARY, "parameters": {"enum": [CANARY]}}}
CHAT = {"model": MODEL, "messages": [{"role": "user", "content": CANARY}], "max_tokens": 2}
BODIES: dict[str, Any] = {
    "/v1/chat/completions": [
        CHAT,
        {**CHAT, "tools": [TOOL], "stop": [CANARY], "user": CANARY, "metadata": {"a": CANARY}, "unknown": CANARY},
        {
            **CHAT,
            "response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": {"enum": [CANARY]}}},
        },
        {**CHAT, "response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": CANARY}}}},
        {**CHAT, "messages": [{"role": CANARY, "content": CANARY}]},
        {**CHAT, "temperature": CANARY},
        {**CHAT, "messages": [{"role": "user", "content": CANARY * 100}]},
    ],
    "/v1/completions": [{"model": MODEL, "prompt": CANARY, "max_tokens": 2, "stream": True}, {"prompt": [CANARY]}],
    "/v1/messages": [CHAT, {**CHAT, "system": CANARY}],
    "/v1/responses": [{"model": MODEL, "input": CANARY, "max_output_tokens": 2}],
    "/tokenize": [{"model": MODEL, "prompt": CANARY}],
}
REQUESTS = [(path, json.dumps(body)) for path, bodies in BODIES.items() for body in bodies]
REQUESTS += [(path, f'{{"prompt": "{CANARY}') for path in BODIES]


@pytest.fixture
def loop() -> Iterator[Loop]:
    """Run an event loop in a thread."""
    loop = Loop()
    yield loop
    loop.close()


async def break_down(_request: DecodeServiceGenerateRequest) -> Any:
    """Fail, as a node that ends."""
    raise UnavailableError("the node has gone")
    yield DecodeServiceGenerateResponse()


@pytest.mark.parametrize("is_broken", [False, True])
def test_a_gateway_logs_no_prompt(
    loop: Loop, tmp_path: Path, caplog: pytest.LogCaptureFixture, is_broken: bool
) -> None:
    """Nor a key; with all that is logged for developers, served or failed, by either API."""
    keys = tmp_path / "keys"
    keys.write_text(f"alice:{KEY} admin\n")
    cluster = FakeCluster(save(byte_level(), tmp_path))
    if is_broken:
        for node in cluster.decodes:
            node.script = break_down
    authorization = f"authorization: Bearer {KEY}"
    caplog.set_level(logging.DEBUG)
    with (
        loop.running(cluster, api_keys_file=keys) as gateway,
        grpc.insecure_channel(f"127.0.0.1:{gateway.grpc_port}") as channel,
    ):
        for path, body in REQUESTS:
            exchange(gateway, post(path, body.encode(), authorization, "connection: close"))
        sampling = SamplingParameters(max_token_count=2)
        call = GenerationServiceStub(channel).Generate(  # type: ignore[no-untyped-call]
            GenerateRequest(text=CANARY, stop=[CANARY], sampling=sampling),
            metadata=[("authorization", f"Bearer {KEY}")],
            timeout=60,
        )
        with pytest.raises(grpc.RpcError) if is_broken else contextlib.nullcontext():
            assert list(call)
        head = f"GET /metrics HTTP/1.1\r\nhost: x\r\n{authorization}\r\nconnection: close\r\n\r\n"
        metrics = exchange(gateway, head.encode()).decode()

    assert caplog.text.count("request_ended") > len(REQUESTS)
    for text in (caplog.text, metrics):
        assert CANARY not in text
        assert KEY not in text
    assert metrics.startswith("HTTP/1.1 200")


@full
def test_no_process_logs_a_prompt() -> None:
    """Neither gateway, router nor nodes, at the level `debug`."""
    debug = {role: {"log_level": "debug"} for role in ("gateway", "router", "prefill", "decode")}
    with Cluster(checkpoint("llama"), prefill=("mock",), decode=("mock",), settings=debug) as cluster:
        for path, body in REQUESTS:
            connection = http.client.HTTPConnection(*cluster.http_address, timeout=60)
            connection.request("POST", path, body, {"content-type": "application/json"})
            connection.getresponse().read()
            connection.close()
        logs = {name: file.read_text() for name, file in cluster.log_files.items()}

    assert " DEBUG " in logs["gateway"]
    assert [name for name, text in logs.items() if CANARY in text] == []
