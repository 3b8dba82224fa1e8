"""Streams of a node that leaves: another one goes on before the old one ends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextvars import Context, ContextVar
from pathlib import Path
from typing import Any

import openai

from baton.errors import UnavailableError
from baton.gateway.cluster.attempt import Attempt
from baton.gateway.cluster.quarantine import Quarantine
from baton.gateway.cluster.token_stream import TokenStreams
from baton.internal.v1.decode_service_pb2 import Finished, ServeResponse
from baton.internal.v1.router_service_pb2 import Placement, PlaceResponse
from baton.telemetry.metrics import Metrics
from gateway.fake_cluster import MODEL, FakeCluster, Loop, echo_token, finished, generation_of, tokens

PROMPT = [1, 2, 3, 4, 5]
NUM_TOKENS = 150
WHOLE = '"#$%&' * 30
"""The prompt in a circle, as the fake nodes have it."""


def _leave(cluster: FakeCluster, *, num_tokens: int = NUM_TOKENS, dies: bool = False) -> None:
    """Have the first node leave after three tokens, and go on for some more."""

    async def leave(request: Any) -> AsyncIterator[Any]:
        for index in range(num_tokens):
            yield tokens(index, [echo_token(request, index)])
            if index == 2:
                cluster.addresses.pop("decode-0")  # as the router does
                yield lambda _stream_id: ServeResponse(is_leaving=True)
            if index >= 2:
                await asyncio.sleep(0.005)
        if dies:
            raise UnavailableError("its grace is over", reason="DRAINING")
        yield finished(request, "decode-0")

    cluster.decodes[0].script = leave


def _text(client: openai.OpenAI) -> str:
    stream = client.completions.create(model=MODEL, prompt=PROMPT, max_tokens=NUM_TOKENS, stream=True)
    return "".join(chunk.choices[0].text for chunk in stream if chunk.choices)


def test_a_stream_moves_while_its_node_goes_on(client: openai.OpenAI, cluster: FakeCluster) -> None:
    """No token is lost or doubled, no attempt is charged, and the old node is let go at the other's first token."""
    _leave(cluster)

    assert _text(client) == WHOLE
    (moved,) = cluster.decodes[1].requests
    assert 3 <= len(moved.output_token_ids) < NUM_TOKENS
    assert moved.attempt == 2
    assert cluster.decodes[0].cancelled.wait(20)
    assert not cluster.router.requests[1].excluded_node_ids


def test_what_takes_over_repeats_what_the_old_node_has_said_meanwhile(
    client: openai.OpenAI, cluster: FakeCluster
) -> None:
    """Where it says several tokens at once, of which some are known, the others are taken."""
    _leave(cluster)

    async def follow_late(request: Any) -> AsyncIterator[Any]:
        begin = len(request.output_token_ids)
        await asyncio.sleep(0.05)
        yield tokens(begin, [echo_token(request, index) for index in range(begin, NUM_TOKENS)])
        yield finished(request, "decode-1")

    cluster.decodes[1].script = follow_late

    assert _text(client) == WHOLE


def test_a_node_without_a_successor_goes_on(loop: Loop, model_dir: Path) -> None:
    """Until its grace ends, which is longer than the answer here."""
    cluster = FakeCluster(model_dir, num_nodes=1)
    _leave(cluster)
    with (
        loop.running(cluster) as running,
        openai.OpenAI(
            base_url=f"http://127.0.0.1:{running.http_port}/v1", api_key="none", max_retries=0, timeout=20
        ) as client,
    ):
        assert _text(client) == WHOLE


def test_a_grace_that_ends_before_another_node_speaks_ends_nothing(client: openai.OpenAI, cluster: FakeCluster) -> None:
    """The other node is waited for."""
    _leave(cluster, num_tokens=5, dies=True)

    async def follow_late(request: Any) -> AsyncIterator[Any]:
        await asyncio.sleep(0.2)
        async for response in cluster.decodes[1].echo(request):
            yield response

    cluster.decodes[1].script = follow_late

    assert _text(client) == WHOLE
    assert len(cluster.decodes[1].requests) == 1


def test_a_node_that_fails_what_moves_to_it_is_asked_once(loop: Loop, model_dir: Path) -> None:
    """While the old one goes on there is time for another, and no reason to repeat the prompt."""
    cluster = FakeCluster(model_dir, num_nodes=3)
    _leave(cluster)

    async def fail(request: Any) -> AsyncIterator[Any]:
        raise UnavailableError("no room")
        yield

    cluster.decodes[1].script = fail
    with (
        loop.running(cluster) as running,
        openai.OpenAI(
            base_url=f"http://127.0.0.1:{running.http_port}/v1", api_key="none", max_retries=0, timeout=20
        ) as client,
    ):
        assert _text(client) == WHOLE
    assert [len(node.requests) for node in cluster.decodes] == [1, 1, 1]


def test_a_node_that_is_back_under_its_name_goes_on(loop: Loop, model_dir: Path) -> None:
    """With what its process before has said."""
    cluster = FakeCluster(model_dir, num_nodes=1)

    async def restart(request: Any) -> AsyncIterator[Any]:
        for index in range(3):
            yield tokens(index, [echo_token(request, index)])
        yield lambda _stream_id: ServeResponse(is_leaving=True)
        cluster.decodes[0].script = None
        while len(cluster.router.requests) < 2:  # noqa: ASYNC110 - the router of these tests tells nobody
            await asyncio.sleep(0.01)
        raise UnavailableError("its grace is over", reason="DRAINING")

    cluster.decodes[0].script = restart
    with (
        loop.running(cluster) as running,
        openai.OpenAI(
            base_url=f"http://127.0.0.1:{running.http_port}/v1", api_key="none", max_retries=0, timeout=5
        ) as client,
    ):
        assert _text(client) == WHOLE


def test_a_successor_that_leaves_before_its_first_token_keeps_nobody(loop: Loop, model_dir: Path) -> None:
    """The first token of the third node ends both streams before it."""
    cluster = FakeCluster(model_dir, num_nodes=3)
    _leave(cluster)

    async def leave_at_once(request: Any) -> AsyncIterator[Any]:
        cluster.addresses.pop("decode-1")
        yield lambda _stream_id: ServeResponse(is_leaving=True)
        await asyncio.sleep(60)

    cluster.decodes[1].script = leave_at_once
    with (
        loop.running(cluster) as running,
        openai.OpenAI(
            base_url=f"http://127.0.0.1:{running.http_port}/v1", api_key="none", max_retries=0, timeout=20
        ) as client,
    ):
        assert _text(client) == WHOLE
        assert all(node.cancelled.wait(20) for node in cluster.decodes[:2])


def test_what_takes_over_is_a_part_of_its_requests_trace() -> None:
    """A node tells of leaving in no request's context."""
    request_name, seen = ContextVar("request_name", default=""), list[str]()

    class Router:
        async def place(self, request: Any) -> PlaceResponse:
            return PlaceResponse(placement=Placement(decode_node_id=f"decode-{request.request_id}-{len(seen)}"))

    async def follow(address: str, request: Any, attempt: Attempt) -> Any:
        seen.append(request_name.get())
        if len(seen) == 1:
            asyncio.get_running_loop().call_soon(attempt.leave, context=Context())
        else:
            attempt.take_tokens(0.0, 0, [1])
            attempt.finish(Finished())
        try:
            return await attempt.ended
        finally:
            attempt.close()

    async def run() -> None:
        request_name.set("r")
        limits = {"token_timeout_seconds": 20.0, "request_timeout_seconds": 20.0}
        quarantine = Quarantine(asyncio.get_running_loop().time, Metrics())
        router: Any = Router()
        streams = TokenStreams(router, follow, Metrics(), quarantine, max_attempts=3, **limits)
        await streams.follow(generation_of(PROMPT), lambda _token_ids, _logprobs: False)

    asyncio.run(run())

    assert seen == ["r", "r"]
