"""How generations share one call per decode node."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import openai
import pytest

from baton.gateway.cluster import node_links
from baton.gateway.cluster.attempt import Attempt
from baton.gateway.server import RunningGateway
from baton.internal.v1 import decode_service_pb2 as decode
from baton.rpc.channel import open_channel
from baton.rpc.status import MISSED_BEATS
from baton.wire.quantities import seconds_from_duration
from gateway.fake_cluster import MODEL, FakeCluster, FakeDecode, Loop, echo_token, finished, served, tokens
from gateway.rest import ask

PROMPT = [71, 72, 73]
"""Tokens of "hij": of the byte-level alphabet, letters are 33 below ASCII."""


@contextlib.contextmanager
def _client(gateway: RunningGateway) -> Iterator[openai.OpenAI]:
    url = f"http://127.0.0.1:{gateway.http_port}/v1"
    with openai.OpenAI(base_url=url, api_key="none", max_retries=0, timeout=20) as client:
        yield client


def _text(client: openai.OpenAI, prompt: list[int], num_tokens: int) -> str:
    return client.completions.create(model=MODEL, prompt=prompt, max_tokens=num_tokens).choices[0].text


def test_generations_of_one_node_share_a_call(client: openai.OpenAI, cluster: FakeCluster) -> None:
    """And none sees another's tokens."""
    prompts = [[64 + index, 65 + index, 66 + index] for index in range(20)]
    with ThreadPoolExecutor(20) as threads:
        texts = list(threads.map(lambda prompt: _text(client, prompt, 30), prompts))

    assert texts == ["".join(chr(token + 33) for token in prompt) * 10 for prompt in prompts]
    assert cluster.decodes[0].num_calls == 1


def test_tokens_of_a_stream_in_one_message_become_one_event(client: openai.OpenAI, cluster: FakeCluster) -> None:
    """What had gathered on the way is written at once."""

    async def burst(request: Any) -> AsyncIterator[Any]:
        yield tokens(0, [echo_token(request, index) for index in range(6)])
        yield finished(request, "decode-0")

    cluster.decodes[0].script = burst
    events = list(client.completions.create(model=MODEL, prompt=PROMPT, max_tokens=6, stream=True))

    assert [event.choices[0].text for event in events] == ["hijhij", ""]


def test_an_interleaved_message_reaches_each_stream_in_order(loop: Loop, cluster: FakeCluster) -> None:
    """Columns of several streams, several tokens each."""

    class Interleaving:
        """Answers two streams in one message."""

        async def serve(self, request_iterator: Any, context: Any) -> None:
            starts: list[decode.StreamStart] = []
            async for request in request_iterator:
                starts += request.starts
                if len(starts) == 2:
                    await context.write(self._message(starts))

        def _message(self, starts: list[decode.StreamStart]) -> decode.ServeResponse:
            response = decode.ServeResponse()
            for index in range(4):
                for start in starts:
                    response.token_stream_ids.append(start.stream_id)
                    response.token_output_indexes.append(index)
                    response.token_ids.append(echo_token(start.request, index))
            for start in starts:
                response.MergeFrom(served(start.stream_id, finished(start.request, "decode-0")))
            return response

    cluster.decodes[0].Serve = Interleaving().serve  # type: ignore[method-assign]
    with loop.running(cluster) as running, _client(running) as client, ThreadPoolExecutor(2) as threads:
        texts = list(threads.map(lambda prompt: _text(client, prompt, 4), [[64, 65], [66, 67]]))

    assert texts == ["abab", "cdcd"]


def test_a_call_that_breaks_moves_all_of_its_streams(loop: Loop, cluster: FakeCluster) -> None:
    """Each goes on elsewhere with the tokens that it has."""
    node = cluster.decodes[0]
    began = threading.Semaphore(0)
    broken = threading.Event()

    async def wait(request: Any) -> AsyncIterator[Any]:
        yield tokens(0, [echo_token(request, 0)])
        began.release()
        await asyncio.Event().wait()

    async def serve(request_iterator: Any, context: Any) -> None:
        serving = asyncio.create_task(FakeServe(request_iterator, context))
        await asyncio.to_thread(broken.wait, 20)
        serving.cancel()

    FakeServe = node.Serve  # noqa: N806
    node.script, node.Serve = wait, serve  # type: ignore[method-assign]
    with loop.running(cluster) as running, _client(running) as client, ThreadPoolExecutor(8) as threads:
        answers = threads.map(lambda index: _text(client, [64 + index, 65 + index], 4), range(8))
        assert all(began.acquire(timeout=20) for _ in range(8))
        broken.set()
        texts = list(answers)

    assert texts == [(chr(97 + index) + chr(98 + index)) * 2 for index in range(8)]
    moved = [(list(request.output_token_ids), request.prompt_token_ids[0]) for request in cluster.decodes[1].requests]
    assert all(known in ([], [first]) for known, first in moved)  # what was on its way may be lost with the call
    assert any(known for known, _ in moved)


def test_a_request_that_waits_for_a_live_engine_keeps_its_place(loop: Loop, cluster: FakeCluster) -> None:
    """It has no token for longer than the limit, but its node works."""
    node = cluster.decodes[0]
    node.is_engine_alive = True

    async def queue(request: Any) -> AsyncIterator[Any]:
        await asyncio.sleep(2.5)
        async for response in node.echo(request):
            yield response

    node.script = queue
    with loop.running(cluster, token_timeout_seconds=1.5) as running, _client(running) as client:
        assert _text(client, PROMPT, 3) == "hij"

    assert not cluster.decodes[1].requests


def test_a_stream_cancelled_before_its_start_went_out_never_starts(
    loop: Loop, cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The node would not know what to cancel, and generate for nobody."""
    monkeypatch.setattr(node_links, "_MAX_TOKENS_PER_MESSAGE", 0)  # each start has a message of its own
    node = cluster.decodes[0]

    async def run() -> list[str]:
        async with open_channel(cluster.addresses[node.node_id]) as channel:
            call = node_links.DecodeCall(channel)
            attempts = [_attempt() for _ in range(4)]
            requests = [decode.DecodeServiceGenerateRequest(request_id=name, prompt_token_ids=[1]) for name in "abcd"]
            opened = [call.open(request, attempt) for request, attempt in zip(requests, attempts, strict=True)]
            running = asyncio.create_task(call.run())
            call.cancel(opened[2])
            for attempt in (attempts[0], attempts[1], attempts[3]):
                await asyncio.wait_for(attempt.ended, 20)
                attempt.close()
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            attempts[2].close()
            return [request.request_id for request in node.requests]

    async def finish(request: Any) -> AsyncIterator[Any]:
        yield finished(request, node.node_id)

    node.script = finish
    with loop.running(cluster):
        assert loop.call(run()) == ["a", "b", "d"]


def test_a_message_that_takes_long_is_announced(
    loop: Loop, cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a node would take the gateway for gone while a long prompt is on its way, and end all of its streams."""
    monkeypatch.setattr(node_links, "_LARGE_BYTES", 150)
    monkeypatch.setattr(node_links, "_SLOW_BYTES_PER_SECOND", 10)
    cluster.decodes[0] = noting = _Noting("decode-0")
    with loop.running(cluster) as running, _client(running) as client:
        assert _text(client, [71] * 200, 3) == "hhh"

    sent = noting.sent
    large = max(range(len(sent)), key=lambda index: sent[index][0])
    assert sent[large - 1][1] >= sent[large][0] / 10
    assert all(MISSED_BEATS * seconds == pytest.approx(0.7) for _, seconds in sent[large:])


def test_what_a_gateway_has_been_slow_to_say_changes_no_promise(loop: Loop, cluster: FakeCluster) -> None:
    """It speaks more often than it promises to, and a node waits 0.7 s, whatever there was: else a stopped one's work
    were free the later, the busier the machine.
    """
    cluster.decodes[0] = noting = _Noting("decode-0")

    async def stall(request: Any) -> AsyncIterator[Any]:
        while len(noting.sent) < 2:  # noqa: ASYNC110 - the fake tells nobody
            await asyncio.sleep(0.01)
        num_before = len(noting.sent)
        time.sleep(0.6)  # noqa: ASYNC251 - the event loop of the gateway and the node stands still
        while len(noting.sent) < num_before + 3:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        yield finished(request, "decode-0")

    noting.script = stall
    with loop.running(cluster) as running, _client(running) as client:
        assert _text(client, [71], 1) == ""

    waits = [MISSED_BEATS * seconds for _, seconds in noting.sent]  # of the node, until it takes the gateway for gone
    assert waits == pytest.approx([0.7] * len(waits))
    assert node_links._BEAT_SECONDS < 0.7 / 6


def test_a_node_is_reached_while_all_links_are_in_use(
    loop: Loop, cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One more link is kept than usual, rather than closed before its first stream."""
    monkeypatch.setattr(node_links, "_MAX_LINKS", 1)
    first, second = cluster.decodes

    async def run() -> list[int]:
        requests = [decode.DecodeServiceGenerateRequest(request_id=name, prompt_token_ids=[1]) for name in "ab"]
        addresses = [cluster.addresses[node.node_id] for node in cluster.decodes]
        async with node_links.NodeLinks() as links:
            waiting = asyncio.create_task(links.follow(addresses[0], requests[0], _attempt()))
            await asyncio.sleep(0)  # it has its link
            assert await links.follow(addresses[1], requests[1], _attempt()) is not None
            can_end.set()
            assert await waiting is not None
        return [len(node.requests) for node in cluster.decodes]

    async def wait(request: Any) -> AsyncIterator[Any]:
        await asyncio.wait_for(can_end.wait(), 20)
        yield finished(request, first.node_id)

    async def finish(request: Any) -> AsyncIterator[Any]:
        yield finished(request, second.node_id)

    can_end = asyncio.Event()
    first.script, second.script = wait, finish
    with loop.running(cluster):
        assert loop.call(run()) == [1, 1]


def test_a_node_that_has_fallen_silent_gets_another_call(loop: Loop, cluster: FakeCluster) -> None:
    """Its former call may be dead in a way that nobody notices."""
    node = cluster.decodes[0]

    async def hang(_request: Any) -> AsyncIterator[Any]:
        await asyncio.sleep(60)
        yield

    node.script = hang
    with loop.running(cluster, token_timeout_seconds=1.5) as running, _client(running) as client:
        assert _text(client, PROMPT, 3) == "hij"
        node.script = None
        assert _text(client, PROMPT, 3) == "hij"

    assert node.num_calls == 2
    assert len(cluster.decodes[1].requests) == 1


def test_tokens_beyond_the_limit_are_a_failure_of_the_node(client: openai.OpenAI, cluster: FakeCluster) -> None:
    """They are never shown, nor held."""

    async def talk_on(request: Any) -> AsyncIterator[Any]:
        yield tokens(0, PROMPT[:2])
        yield tokens(2, PROMPT)

    cluster.decodes[0].script = talk_on

    assert _text(client, PROMPT, 4) == "hijh"
    assert list(cluster.decodes[1].requests[0].output_token_ids) == PROMPT[:2]


@pytest.mark.usefixtures("small_send_buffers")
def test_a_client_that_reads_late_gets_everything(
    loop: Loop, cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it does not take is held as text, and written when it does; nobody else waits for it."""

    async def in_parts(request: Any) -> AsyncIterator[Any]:
        num_tokens = request.sampling.max_token_count
        for start in range(0, num_tokens, 20):
            end = min(start + 20, num_tokens)
            yield tokens(start, [echo_token(request, index) for index in range(start, end)])
        yield finished(request, "decode-0")

    cluster.decodes[0].script = in_parts
    monkeypatch.setattr("baton.gateway.http.connection.WRITE_BUFFER_BYTES", 4096)
    with (
        loop.running(cluster) as running,
        _client(running) as client,
        socket.socket() as slow,
    ):
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        slow.settimeout(60)
        slow.connect(("127.0.0.1", running.http_port))
        fields = {"prompt": [PROMPT] * 8, "n": 16, "max_tokens": 200, "stream": True}
        body = json.dumps({"model": MODEL, **fields}).encode()
        head = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-type: application/json\r\n"
        slow.sendall(head + b"content-length: %d\r\n\r\n" % len(body) + body)
        _wait(lambda: len(cluster.decodes[0].requests) == 128)
        assert _text(client, PROMPT, 3) == "hij"
        answer = b"".join(iter(lambda: slow.recv(65536), b""))

    assert answer.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")
    assert _num_characters(answer) == 128 * 200


def test_a_broken_answer_leaves_the_streams_beside_it_alone(
    gateway: RunningGateway, cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bug in what is made of one request's tokens is a 500 of that request."""
    from baton.gateway.api.openai import chat

    def fail(*_arguments: object) -> bytes:
        raise ValueError("a bug")

    monkeypatch.setattr(chat.ChatFormat, "delta", fail)
    chat = {"model": MODEL, "messages": [{"role": "user", "content": "x"}], "stream": True, "max_tokens": 3}
    broken = ask(gateway, "/v1/chat/completions", chat)
    whole = ask(gateway, "/v1/completions", {"model": MODEL, "prompt": PROMPT, "max_tokens": 3})

    assert broken.status == 500
    assert whole.body["choices"][0]["text"] == "hij"
    assert cluster.decodes[0].num_calls == 1


def _attempt() -> Attempt:
    return Attempt([], [], lambda *_: False, max_tokens=1, first_token_timeout_seconds=20.0, token_timeout_seconds=20.0)


def _num_characters(answer: bytes) -> int:
    lines = [line for line in answer.split(b"\n") if line.startswith(b"data: {")]
    return sum(len(choice["text"]) for line in lines for choice in json.loads(line[6:])["choices"])


def _wait(is_true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not is_true():
        assert time.monotonic() < deadline
        time.sleep(0.01)


class _Noting(FakeDecode):
    """Keeps the size of every message, and the pause that it announces, seconds."""

    def __init__(self, node_id: str) -> None:
        super().__init__(node_id)
        self.sent: list[tuple[int, float]] = []

    async def Serve(self, request_iterator: Any, context: Any) -> None:  # noqa: N802
        """Serve, and keep what comes."""

        async def noted() -> AsyncIterator[Any]:
            async for request in request_iterator:
                self.sent.append((request.ByteSize(), seconds_from_duration(request.beat_interval)))
                yield request

        await super().Serve(noted(), context)
