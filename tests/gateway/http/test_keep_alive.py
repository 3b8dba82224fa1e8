"""Comments in streams that have nothing to say."""

from __future__ import annotations

import asyncio
import http.client
import json
from collections.abc import AsyncIterator
from typing import Any

import openai
import pytest

from baton.gateway.http.response import COMMENT
from gateway.fake_cluster import MODEL, FakeCluster, Loop, finished, tokens
from gateway.rest import ask
from gateway.steps import TIMEOUT_SECONDS, TOKENS, Steps

PROMPT = [71, 72, 73]
STREAMS: dict[str, dict[str, Any]] = {
    "/v1/completions": {"prompt": PROMPT, "max_tokens": 3},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "x"}], "max_tokens": 3},
    "/v1/responses": {"input": "x", "max_output_tokens": 16},
    "/v1/messages": {"messages": [{"role": "user", "content": "x"}], "max_tokens": 3},
}


async def _slow(_request: Any) -> AsyncIterator[Any]:
    await asyncio.sleep(0.4)
    yield tokens(0, [71])
    await asyncio.sleep(0.4)
    yield tokens(1, [72])
    yield finished(_request, "decode-0")


@pytest.mark.parametrize("path", STREAMS)
def test_an_idle_stream_gets_comments_before_and_between_its_tokens(
    loop: Loop, cluster: FakeCluster, path: str
) -> None:
    """Its events are those of any other stream."""
    steps = Steps()
    cluster.decodes[0].script = steps.script
    body = json.dumps({"model": MODEL, "stream": True, **STREAMS[path]})
    with loop.running(cluster, stream_idle_seconds=0.2) as running:
        connection = http.client.HTTPConnection("127.0.0.1", running.http_port, timeout=TIMEOUT_SECONDS)
        connection.request("POST", path, body, {"content-type": "application/json"})
        response = connection.getresponse()
        for text in TOKENS.values():
            _read_to(response, COMMENT.decode().strip())
            steps.next()
            _read_to(response, f'"{text}"')
        response.read()
        connection.close()


def _read_to(response: http.client.HTTPResponse, text: str) -> None:
    while text not in (line := response.readline().decode()):
        assert line, f"the stream ended before {text}"


def test_a_client_does_not_see_comments(loop: Loop, cluster: FakeCluster) -> None:
    """The official one."""
    cluster.decodes[0].script = _slow
    with loop.running(cluster, stream_idle_seconds=0.1) as running:
        url = f"http://127.0.0.1:{running.http_port}/v1"
        with openai.OpenAI(base_url=url, api_key="none", max_retries=0, timeout=20) as client:
            stream = client.completions.create(model=MODEL, prompt=PROMPT, max_tokens=2, stream=True)
            texts = [event.choices[0].text for event in stream]

    assert texts == ["h", "i", ""]


def test_without_an_idle_time_there_are_no_comments(loop: Loop, cluster: FakeCluster) -> None:
    """0 turns them off."""
    cluster.decodes[0].script = _slow
    with loop.running(cluster, stream_idle_seconds=0) as running:
        answer = ask(running, "/v1/completions", {"model": MODEL, "stream": True, **STREAMS["/v1/completions"]}).data

    assert COMMENT not in answer
    assert answer.endswith(b"data: [DONE]\n\n")
