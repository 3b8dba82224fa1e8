"""A key that is taken out of the file ends what runs under it."""

from __future__ import annotations

import asyncio
import http.client
import json
from collections.abc import AsyncIterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import grpc
import pytest

from baton.v1 import generation_service_pb2 as messages
from baton.v1.generation_service_pb2_grpc import GenerationServiceStub
from gateway.fake_cluster import MODEL, FakeCluster, Loop, echo_token, tokens

SECONDS = 20.0


async def _endless(request: Any) -> AsyncIterator[Any]:
    yield tokens(0, [echo_token(request, 0)])
    await asyncio.sleep(600)


def test_streams_of_a_key_that_is_taken_away_end(loop: Loop, cluster: FakeCluster, tmp_path: Path) -> None:
    """Each is told why, in the words of its API; another key of the same name, and its streams, stay."""
    keys = tmp_path / "keys"
    keys.write_text("bob:old-key\nbob:new-key\n")
    cluster.decodes[0].script = _endless
    streams = {}
    with ExitStack() as opened:
        with loop.running(cluster, api_keys_file=keys, drain_seconds=0.2) as running:
            for key in ("old-key", "new-key"):
                connection = http.client.HTTPConnection("127.0.0.1", running.http_port, timeout=SECONDS)
                opened.callback(connection.close)
                body = {"model": MODEL, "prompt": [71, 72], "max_tokens": 9, "stream": True}
                headers = {"content-type": "application/json", "authorization": f"Bearer {key}"}
                connection.request("POST", "/v1/completions", json.dumps(body), headers)
                streams[key] = opened.enter_context(connection.getresponse())
                assert streams[key].readline().startswith(b"data: ")
            channel = opened.enter_context(grpc.insecure_channel(f"127.0.0.1:{running.grpc_port}"))
            metadata, request = (("authorization", "Bearer old-key"),), messages.GenerateRequest(text="hi")
            call = GenerationServiceStub(channel).Generate(request, timeout=SECONDS, metadata=metadata)
            next(call)

            keys.write_text("bob:new-key\n")

            ended = json.loads(streams["old-key"].read().split(b"data: ")[-1])
            with pytest.raises(grpc.RpcError) as caught:
                next(call)
        stayed = json.loads(streams["new-key"].read().split(b"data: ")[-1])

    assert ended["error"]["code"] == "invalid_api_key"
    assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED
    assert stayed["error"]["code"] == "draining"
