"""Comments in streams that have nothing to say."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import openai
import pytest

from baton.gateway.keep_alive import COMMENT
from gateway.cluster import MODEL, FakeCluster, Loop, finished, tokens
from gateway.rest import ask

PROMPT = [71, 72, 73]
STREAMS: dict[str, dict[str, Any]] = {
    "/v1/completions": {"prompt": PROMPT, "max_tokens": 2},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "x"}], "max_tokens": 2},
    "/v1/responses": {"input": "x", "max_output_tokens": 16},
    "/v1/messages": {"messages": [{"role": "user", "content": "x"}], "max_tokens": 2},
}


async def _slow(_request: Any) -> AsyncIterator[Any]:
    await asyncio.sleep(1.0)
    yield tokens(0, [71])
    await asyncio.sleep(1.0)
    yield tokens(1, [72])
    yield finished(_request, "decode-0")


@pytest.mark.parametrize("path", STREAMS)
def test_an_idle_stream_gets_comments_before_and_between_its_tokens(
    loop: Loop, cluster: FakeCluster, path: str
) -> None:
    """Its events are those of any other stream."""
    cluster.decodes[0].script = _slow
    with loop.running(cluster, stream_idle_seconds=0.2) as running:
        answer = ask(running, path, {"model": MODEL, "stream": True, **STREAMS[path]}).data

    events = [event + b"\n\n" for event in answer.split(b"\n\n") if event]
    first = next(index for index, event in enumerate(events) if event != COMMENT)
    assert first >= 1
    assert COMMENT in events[first:]
    assert b'"h"' in answer
    assert b'"i"' in answer


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
