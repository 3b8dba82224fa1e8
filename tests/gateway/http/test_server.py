"""The HTTP server at its limits, over raw sockets."""

from __future__ import annotations

import asyncio
import http.client
import json
import socket
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from baton.gateway.http import connection
from baton.gateway.http.connection import MAX_PIPELINED_REQUESTS
from baton.gateway.server import RunningGateway
from baton.v1.generation_pb2 import TokenLogprob
from gateway.fake_cluster import FakeCluster, Loop, echo_token, tokens
from gateway.http.raw_client import PROMPT, completion, connect, exchange, post, status_of


@pytest.fixture
def strict(
    loop: Loop, cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Iterator[RunningGateway]:
    """Run a gateway with small limits of what it takes, and of how slowly an answer is taken."""
    monkeypatch.setattr(connection, "MAX_HEADER_BYTES", 2048)
    monkeypatch.setattr(connection, "WRITE_BUFFER_BYTES", 4096)
    limits = {
        "max_body_bytes": 4096,
        "slow_client_timeout_seconds": 0.5,
        "max_concurrent_requests": getattr(request, "param", 1),
    }
    with loop.running(cluster, **limits) as running:
        yield running


@pytest.fixture
def impatient(loop: Loop, cluster: FakeCluster, request: pytest.FixtureRequest) -> Iterator[RunningGateway]:
    """Run a gateway that waits for one thing not for long, and for what comes before it as long as it takes."""
    with loop.running(cluster, **{request.param: 0.3}) as running:
        yield running


def test_a_body_over_the_limit_is_refused_before_it_is_sent(strict: RunningGateway) -> None:
    """The announced length is enough; the answer arrives although the body is on its way."""
    answer = exchange(strict, post("/v1/completions", b"x" * 5000))

    assert status_of(answer) == 413
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["type"] == "invalid_request_error"


def test_a_chunked_body_over_the_limit_is_refused(strict: RunningGateway) -> None:
    """Without a length, what has come is counted."""
    chunk = b"400\r\n" + b"x" * 1024 + b"\r\n"
    head = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n%b\r\n"

    assert status_of(exchange(strict, head % b"transfer-encoding: chunked\r\n" + chunk * 5)) == 413


@pytest.mark.parametrize(
    "data", [b"GET / HTTP/1.1\r\nhost: x\r\nx: " + b"y" * 3000 + b"\r\n\r\n", b"GET /" + b"z" * 3000]
)
def test_a_head_over_the_limit_is_refused(strict: RunningGateway, data: bytes) -> None:
    """Complete or not."""
    assert status_of(exchange(strict, data)) == 431


@pytest.mark.parametrize(
    ("impatient", "data", "part"),
    [
        ("header_timeout_seconds", b"GET /health HT", b"head"),
        ("body_timeout_seconds", post("/v1/completions", b" " * 9)[:-1], b"body"),
    ],
    indirect=["impatient"],
)
def test_a_request_that_does_not_come_is_given_up(impatient: RunningGateway, data: bytes, part: bytes) -> None:
    """A connection cannot be held open by doing nothing."""
    answer = exchange(impatient, data)

    assert status_of(answer) == 408
    assert part in answer


@pytest.mark.parametrize("impatient", ["keep_alive_timeout_seconds"], indirect=True)
def test_an_idle_connection_is_closed_without_a_word(impatient: RunningGateway) -> None:
    """There is no request to answer."""
    assert exchange(impatient, b"") == b""


@pytest.mark.parametrize("data", [b"\x16\x03\x01\x02\x00\r\n\r\n", b"GET\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n"])
def test_what_is_no_http_is_refused(strict: RunningGateway, data: bytes) -> None:
    """TLS on the plain port, for one."""
    assert status_of(exchange(strict, data)) == 400


def test_requests_sent_ahead_are_answered_in_order(gateway: RunningGateway) -> None:
    """Pipelining works, and the last one may close."""
    get = b"GET %b HTTP/1.1\r\nhost: x\r\n%b\r\n"
    data = (
        get % (b"/version", b"") + post("/v1/completions", completion()) + get % (b"/health", b"connection: close\r\n")
    )
    answer = exchange(gateway, data)

    assert answer.count(b"HTTP/1.1 200 OK") == 3
    assert answer.index(b'"version"') < answer.index(b"text_completion") < answer.index(b'"status":"ok"')


def test_no_more_than_the_requests_that_may_be_sent_ahead_are_served(gateway: RunningGateway) -> None:
    """One answer says so for all that follow: none is served that the client did not wait for."""
    sent = b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n" * (2 * MAX_PIPELINED_REQUESTS)

    answer = exchange(gateway, sent)

    assert answer.count(b"HTTP/1.1 200") == MAX_PIPELINED_REQUESTS
    assert answer.count(b"HTTP/1.1 400") == 1
    assert answer.endswith(b'"code":null}}')


@pytest.mark.parametrize("hosts", [b"", b"host: a\r\nHost: b\r\n"], ids=["none", "two"])
def test_a_request_names_one_host(gateway: RunningGateway, hosts: bytes) -> None:
    """RFC 9112, 3.2: whatever stands before the gateway may have gone by another one."""
    answer = exchange(gateway, b"GET /health HTTP/1.1\r\n" + hosts + b"\r\n")

    assert answer.startswith(b"HTTP/1.1 400")
    assert b"Host" in answer


@pytest.mark.parametrize("header", [b"Authorization: Bearer", b"x-api-key:"])
def test_a_request_shows_one_key(gateway: RunningGateway, header: bytes) -> None:
    """Of two, who checks before the gateway may have seen the other."""
    keys = header + b" a\r\n" + header.upper() + b" b\r\n"
    answer = exchange(gateway, b"GET /v1/models HTTP/1.1\r\nhost: x\r\n" + keys + b"\r\n")

    assert answer.startswith(b"HTTP/1.1 400")
    assert b"Duplicate" in answer


def test_a_target_may_name_the_origin(gateway: RunningGateway) -> None:
    """RFC 9112, 3.2.2: servers take the absolute form of a target."""
    answer = exchange(gateway, b"GET http://x:1/health HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")

    assert answer.endswith(b'{"status":"ok"}')


def test_a_connection_serves_many_requests(gateway: RunningGateway) -> None:
    """Keep-alive, over whole answers, streams and errors."""
    connection = http.client.HTTPConnection("127.0.0.1", gateway.http_port, timeout=20)
    statuses = []
    for fields in ({}, {"stream": True}, {"max_tokens": 0}, {}):
        connection.request("POST", "/v1/completions", completion(**fields), {"content-type": "application/json"})
        response = connection.getresponse()
        response.read()
        statuses.append(response.status)
    connection.close()

    assert statuses == [200, 200, 400, 200]


def test_a_large_body_is_asked_for_with_100_continue(gateway: RunningGateway) -> None:
    """As curl sends it."""
    with connect(gateway) as connection:
        body = completion()
        connection.sendall(post("/v1/completions", b"", "expect: 100-continue").replace(b": 0", b": %d" % len(body)))
        assert connection.recv(100).startswith(b"HTTP/1.1 100")
        connection.sendall(body)

        assert connection.recv(65536).startswith(b"HTTP/1.1 200")


def test_an_old_client_gets_its_stream_without_chunks(gateway: RunningGateway) -> None:
    """HTTP/1.0 ends by closing."""
    data = post("/v1/completions", completion(stream=True)).replace(b"HTTP/1.1", b"HTTP/1.0")
    head, _, events = exchange(gateway, data).partition(b"\r\n\r\n")

    assert b"transfer-encoding" not in head
    assert events.endswith(b"data: [DONE]\n\n")
    assert all(line.startswith(b"data: ") for line in events.split(b"\n\n") if line)


def test_a_client_that_goes_cancels_its_generation(gateway: RunningGateway, cluster: FakeCluster) -> None:
    """At once, on the node."""
    node = cluster.decodes[0]
    node.script = _endless
    connection = connect(gateway)
    connection.sendall(post("/v1/completions", completion(max_tokens=200, stream=True)))
    assert connection.recv(1000)
    connection.close()

    assert node.cancelled.wait(20)


@pytest.mark.usefixtures("small_send_buffers")
@pytest.mark.parametrize("strict", [8 * 16], indirect=True)
def test_a_client_that_does_not_read_is_dropped_alone(strict: RunningGateway, cluster: FakeCluster) -> None:
    """Its generation ends, its place is free, and nobody else waits for it."""
    node = cluster.decodes[0]
    node.script = _flood
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.connect(("127.0.0.1", strict.http_port))
        connection.sendall(
            post("/v1/completions", completion(prompt=[PROMPT] * 8, n=16, max_tokens=200, stream=True, logprobs=5))
        )
        assert node.cancelled.wait(20)

    node.script = None
    request = post("/v1/completions", completion(), "connection: close")
    while (status := status_of(exchange(strict, request))) == 429:
        pass  # until the last of its streams has ended
    assert status == 200


def test_more_requests_than_allowed_are_asked_to_come_back(strict: RunningGateway, cluster: FakeCluster) -> None:
    """429 with Retry-After, while the one in work goes on."""
    node, may_go_on = cluster.decodes[0], threading.Event()

    async def wait(request: Any) -> AsyncIterator[Any]:
        yield tokens(0, [104])
        await asyncio.to_thread(may_go_on.wait, 20)
        yield tokens(1, [105])

    node.script = wait
    with connect(strict) as first:
        first.sendall(post("/v1/completions", completion(max_tokens=200, stream=True)))
        assert first.recv(1000)
        answer = exchange(strict, post("/v1/completions", completion(), "connection: close"))
        assert status_of(answer) == 429
        assert b"retry-after: 1" in answer
        may_go_on.set()
        assert first.recv(1000)


def test_answers_that_run_are_finished_before_the_gateway_stops(loop: Loop, cluster: FakeCluster) -> None:
    """Drain: no new connections, but every token of the old ones."""
    node = cluster.decodes[0]
    node.script = _paced
    with loop.running(cluster, drain_seconds=10) as running:
        connection = connect(running)
        connection.sendall(post("/v1/completions", completion(max_tokens=20, stream=True)))
        start = connection.recv(1000)
    rest = b"".join(iter(lambda: connection.recv(65536), b""))
    connection.close()

    assert (start + rest).endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")


def test_every_answer_carries_the_request_id(gateway: RunningGateway, cluster: FakeCluster) -> None:
    """The client's own, or a new one; nodes see a name that begins with it."""
    mine = exchange(gateway, post("/v1/completions", completion(), "x-request-id: abc-1", "connection: close"))
    bad = exchange(gateway, post("/v1/completions", completion(), "x-request-id: a b", "connection: close"))

    assert b"x-request-id: abc-1\r\n" in mine
    assert cluster.decodes[0].requests[0].request_id.startswith("abc-1.")
    assert status_of(bad) == 400


async def _endless(_request: Any) -> AsyncIterator[Any]:
    yield tokens(0, [104])
    await asyncio.sleep(60)


async def _paced(request: Any) -> AsyncIterator[Any]:

    from gateway.fake_cluster import finished

    for index in range(request.sampling.max_token_count):
        yield tokens(index, [echo_token(request, index)])
        await asyncio.sleep(0.01)
    yield finished(request, "decode-0")


async def _flood(request: Any) -> AsyncIterator[Any]:
    alternatives = [TokenLogprob(token_id=other) for other in range(5)]
    entry = TokenLogprob(token_id=104, alternatives=alternatives)
    num_tokens = request.sampling.max_token_count
    yield tokens(0, [104] * num_tokens, [entry] * num_tokens)
    await asyncio.sleep(60)
