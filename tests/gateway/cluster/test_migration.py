"""What a client sees when a decode node fails."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import openai
import pytest

from baton.errors import InvalidFieldError, UnavailableError
from baton.rpc.status import GATEWAY_SILENT, PEER_SILENT
from gateway.fake_cluster import MODEL, FakeCluster, Loop, echo_token, finished, tokens

PROMPT = [104, 105, 106, 107, 108]


def _client(port: int) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="none", max_retries=0, timeout=20)


def _stream_text(client: openai.OpenAI, **options: Any) -> str:
    stream = client.completions.create(model=MODEL, prompt=PROMPT, stream=True, **options)
    return "".join(chunk.choices[0].text for chunk in stream)


def test_a_node_that_dies_leaves_no_gap_and_no_double(client: openai.OpenAI, cluster: FakeCluster) -> None:
    """The next node continues after the tokens already sent; what it repeats is dropped."""
    expected = client.completions.create(model=MODEL, prompt=PROMPT, max_tokens=8, seed=7).choices[0].text
    first, second = cluster.decodes
    first.requests.clear()
    cluster.router.requests.clear()

    async def die(request: Any) -> AsyncIterator[Any]:
        yield tokens(0, [echo_token(request, 0), echo_token(request, 1)])
        yield tokens(2, [echo_token(request, 2)])
        raise UnavailableError("the engine is gone")

    async def repeat_then_continue(request: Any) -> AsyncIterator[Any]:
        yield tokens(2, [echo_token(request, 2)])
        async for response in second.echo(request):
            yield response

    first.script, second.script = die, repeat_then_continue

    assert _stream_text(client, max_tokens=8, seed=7) == expected
    moved = second.requests[0]
    assert list(moved.prompt_token_ids) == PROMPT
    assert list(moved.output_token_ids) == [104, 105, 106]
    assert (moved.attempt, moved.sampling.seed) == (2, 7)
    assert moved.request_id == first.requests[0].request_id
    assert list(cluster.router.requests[1].excluded_node_ids) == ["decode-0"]


def test_a_stream_with_a_missing_token_is_continued_elsewhere(client: openai.OpenAI, cluster: FakeCluster) -> None:
    """A gap is a failure of the node, never shown."""

    async def skip(request: Any) -> AsyncIterator[Any]:
        yield tokens(0, [echo_token(request, 0)])
        yield tokens(2, [echo_token(request, 2)])

    cluster.decodes[0].script = skip
    answer = client.completions.create(model=MODEL, prompt=PROMPT, max_tokens=5)

    assert answer.usage is not None
    assert answer.usage.completion_tokens == 5
    assert list(cluster.decodes[1].requests[0].output_token_ids) == PROMPT[:1]


def test_a_stream_that_ends_without_a_result_is_continued_elsewhere(
    client: openai.OpenAI, cluster: FakeCluster
) -> None:
    """The end of a stream is not the end of a generation."""

    async def stop_early(request: Any) -> AsyncIterator[Any]:
        yield tokens(0, [echo_token(request, 0)])

    cluster.decodes[0].script = stop_early

    assert client.completions.create(model=MODEL, prompt=PROMPT, max_tokens=3).baton["attempts"] == 2  # type: ignore[attr-defined]


def test_a_node_that_dies_after_its_last_token_is_not_asked_again(client: openai.OpenAI, cluster: FakeCluster) -> None:
    """All tokens are there: only the report is missing."""

    async def lose_the_end(request: Any) -> AsyncIterator[Any]:
        yield tokens(0, PROMPT[:3])

    cluster.decodes[0].script = lose_the_end
    answer = client.completions.create(model=MODEL, prompt=PROMPT, max_tokens=3)

    assert answer.choices[0].finish_reason == "length"
    assert not cluster.decodes[1].requests


def test_no_other_request_goes_to_a_node_that_has_just_fallen_silent(
    client: openai.OpenAI, cluster: FakeCluster
) -> None:
    """The router finds out later; the only node left is asked nevertheless."""

    async def fall_silent(_request: Any) -> AsyncIterator[Any]:
        yield tokens(0, PROMPT[:1])
        raise UnavailableError("the peer was silent for 0.8 seconds", reason=PEER_SILENT)

    cluster.decodes[0].script = fall_silent
    assert _stream_text(client, max_tokens=4)
    cluster.router.requests.clear()
    assert _stream_text(client, max_tokens=4)

    assert [list(request.excluded_node_ids) for request in cluster.router.requests] == [["decode-0"]]


def test_a_silent_node_is_left_after_the_token_timeout(loop: Loop, cluster: FakeCluster) -> None:
    """A hung engine answers pings, so silence is what counts; its call is cancelled."""

    async def hang(request: Any) -> AsyncIterator[Any]:
        yield tokens(0, [echo_token(request, 0)])
        await asyncio.sleep(60)

    cluster.decodes[0].script = hang
    with loop.running(cluster, token_timeout_seconds=1.5) as running, _client(running.http_port) as client:
        assert _stream_text(client, max_tokens=4)
        assert list(cluster.decodes[1].requests[0].output_token_ids) == PROMPT[:1]
        assert cluster.decodes[0].cancelled.wait(20)


def test_after_the_last_attempt_a_stream_ends_with_an_error_event(client: openai.OpenAI, cluster: FakeCluster) -> None:
    """The client is told why; it never waits for ever."""

    async def die(request: Any) -> AsyncIterator[Any]:
        yield tokens(len(request.output_token_ids), [echo_token(request, 0)])
        raise UnavailableError("the engine is gone")

    for node in cluster.decodes:
        node.script = die

    with pytest.raises(openai.APIError, match="the engine is gone"):
        _stream_text(client, max_tokens=20)
    assert sum(len(node.requests) for node in cluster.decodes) == 3


def test_silence_is_no_failure_as_long_as_tokens_come(client: openai.OpenAI, cluster: FakeCluster) -> None:
    """Nodes without a processor for a moment seem silent; there is nothing wrong with what they were asked."""

    async def starve(request: Any) -> AsyncIterator[Any]:
        index = len(request.output_token_ids)
        yield tokens(index, [echo_token(request, index)])
        raise UnavailableError("the peer was silent for 0.8 seconds", reason=PEER_SILENT)

    for node in cluster.decodes:
        node.script = starve
    answer = client.completions.create(model=MODEL, prompt=PROMPT, max_tokens=6)

    assert answer.baton["attempts"] == 6  # type: ignore[attr-defined]


def test_a_pause_of_the_gateway_speaks_against_no_node(client: openai.OpenAI, cluster: FakeCluster) -> None:
    """Which has ended its streams: they go on where their KV is, however often that happens."""

    async def pause(request: Any) -> AsyncIterator[Any]:
        index = len(request.output_token_ids)
        yield tokens(index, [echo_token(request, index)])
        raise UnavailableError("the gateway was silent", reason=GATEWAY_SILENT)

    cluster.decodes[0].script = pause
    answer = client.completions.create(model=MODEL, prompt=PROMPT, max_tokens=6)

    assert answer.baton["attempts"] == 6  # type: ignore[attr-defined]
    assert not cluster.decodes[1].requests


def test_silence_without_a_token_is_given_up(loop: Loop, cluster: FakeCluster) -> None:
    """After as long as one silent node would have been waited for."""

    async def starve(request: Any) -> AsyncIterator[Any]:
        raise UnavailableError("the peer was silent for 0.8 seconds", reason=PEER_SILENT)
        yield

    for node in cluster.decodes:
        node.script = starve
    with loop.running(cluster, token_timeout_seconds=0.2) as running, _client(running.http_port) as client:
        with pytest.raises(openai.APIStatusError) as refusal:
            client.completions.create(model=MODEL, prompt=PROMPT, max_tokens=6)
        assert refusal.value.status_code == 503
    assert sum(len(node.requests) for node in cluster.decodes) >= 3


def test_a_failure_before_the_first_token_has_a_status(client: openai.OpenAI, cluster: FakeCluster) -> None:
    """Nothing has been sent, so the answer is a 503 that asks to come back."""

    async def die(request: Any) -> AsyncIterator[Any]:
        raise UnavailableError("draining", reason="DRAINING")
        yield

    for node in cluster.decodes:
        node.script = die

    with pytest.raises(openai.InternalServerError) as failure:
        _stream_text(client, max_tokens=2)
    assert failure.value.status_code == 503
    assert failure.value.response.headers["retry-after"] == "1"
    assert failure.value.code == "draining"


def test_a_bad_request_is_not_tried_on_another_node(client: openai.OpenAI, cluster: FakeCluster) -> None:
    """A request that a node refuses for its contents would be refused by all."""

    async def refuse(request: Any) -> AsyncIterator[Any]:
        raise InvalidFieldError("logit_bias", "no")
        yield

    cluster.decodes[0].script = refuse

    with pytest.raises(openai.BadRequestError) as failure:
        client.completions.create(model=MODEL, prompt=PROMPT)
    assert failure.value.param == "logit_bias"
    assert not cluster.decodes[1].requests


def test_the_request_timeout_ends_a_generation_that_still_runs(loop: Loop, cluster: FakeCluster) -> None:
    """The deadline covers all attempts."""

    async def hang(request: Any) -> AsyncIterator[Any]:
        await asyncio.sleep(60)
        yield

    cluster.decodes[0].script = hang
    with loop.running(cluster, request_timeout_seconds=1.0) as running, _client(running.http_port) as client:
        with pytest.raises(openai.InternalServerError) as failure:
            client.completions.create(model=MODEL, prompt=PROMPT)
        assert failure.value.status_code == 504
        assert cluster.decodes[0].cancelled.wait(20)


def test_a_router_that_comes_back_in_time_is_not_noticed(loop: Loop, cluster: FakeCluster) -> None:
    """Placements are asked for again for a while."""
    with loop.running(cluster, router_timeout_seconds=10) as running, _client(running.http_port) as client:
        client.completions.create(model=MODEL, prompt=PROMPT, max_tokens=1)
        loop.call(cluster.stop_router())

        async def ask_and_restart() -> str:
            asking = asyncio.create_task(
                asyncio.to_thread(client.completions.create, model=MODEL, prompt=PROMPT, max_tokens=2)
            )
            await asyncio.sleep(0.2)
            await cluster.start_router()
            return (await asking).choices[0].finish_reason

        assert loop.call(ask_and_restart()) == "length"


def test_a_router_that_stays_away_gives_503_with_a_cause(loop: Loop, cluster: FakeCluster) -> None:
    """The gateway says who is missing."""
    with loop.running(cluster, router_timeout_seconds=1.0) as running, _client(running.http_port) as client:
        client.completions.create(model=MODEL, prompt=PROMPT, max_tokens=1)
        loop.call(cluster.stop_router())

        with pytest.raises(openai.InternalServerError, match="the router does not answer") as failure:
            client.completions.create(model=MODEL, prompt=PROMPT, max_tokens=1)
        assert failure.value.status_code == 503
        assert failure.value.response.headers["retry-after"] == "1"
        assert str(cluster.router_port) not in str(failure.value)


def test_without_any_node_the_gateway_is_not_ready(loop: Loop, model_dir: Path) -> None:
    """Ready means that a request would be served."""
    cluster = FakeCluster(model_dir, num_nodes=0)
    refusal = pytest.raises(openai.InternalServerError, match="no decode node serves tiny")
    with loop.running(cluster) as running, _client(running.http_port) as client, refusal:
        client.completions.create(model=MODEL, prompt=PROMPT)


def test_a_node_with_another_tokenizer_is_refused_by_the_field(loop: Loop, cluster: FakeCluster) -> None:
    """Tokens would mean something else there."""
    cluster.tokenizer_digest = "f" * 32
    with loop.running(cluster) as running, _client(running.http_port) as client:
        with pytest.raises(openai.InternalServerError, match="tokenizer_digest") as failure:
            client.completions.create(model=MODEL, prompt=PROMPT)
        assert failure.value.param == "tokenizer_digest"


def test_the_end_of_the_generation_is_reported_once(client: openai.OpenAI, cluster: FakeCluster) -> None:
    """A node that goes on after its result changes nothing."""
    node = cluster.decodes[0]

    async def talk_on(request: Any) -> AsyncIterator[Any]:
        yield tokens(0, PROMPT[:2])
        yield finished(request, node.node_id)
        yield tokens(2, PROMPT[2:])

    node.script = talk_on
    answer = client.completions.create(model=MODEL, prompt=PROMPT, max_tokens=9)

    assert answer.usage is not None
    assert answer.usage.completion_tokens == 2


def test_the_only_node_may_restart_in_the_middle(loop: Loop, model_dir: Path) -> None:
    """With no other node left, the failed one is waited for."""
    cluster = FakeCluster(model_dir, num_nodes=1)
    node = cluster.decodes[0]

    async def die(request: Any) -> AsyncIterator[Any]:
        address = cluster.addresses.pop(node.node_id)
        asyncio.get_running_loop().call_later(0.2, cluster.addresses.__setitem__, node.node_id, address)
        node.script = None
        yield tokens(0, [echo_token(request, 0)])
        raise UnavailableError("killed")

    node.script = die
    with loop.running(cluster) as running, _client(running.http_port) as client:
        answer = client.completions.create(model=MODEL, prompt=PROMPT, max_tokens=4)

    assert answer.usage is not None
    assert answer.usage.completion_tokens == 4
    assert [len(request.output_token_ids) for request in node.requests] == [0, 1]


def test_a_node_that_cannot_be_reached_is_passed_over(client: openai.OpenAI, cluster: FakeCluster) -> None:
    """Its address answers nobody."""
    cluster.addresses["decode-0"] = "127.0.0.1:1"

    answer = client.completions.create(model=MODEL, prompt=PROMPT, max_tokens=2)

    assert answer.baton["decode_node"] == "decode-1"  # type: ignore[attr-defined]
