"""Compressed bodies, of requests within a bound, of answers for those who ask."""

from __future__ import annotations

import asyncio
import email.utils
import gzip
import json
import threading
import time
import zlib
from collections.abc import AsyncIterator
from typing import Any

import pytest

from baton.gateway.http.content_coding import accepts_gzip
from baton.gateway.server import RunningGateway
from gateway.fake_cluster import FakeCluster, Loop, finished, tokens
from gateway.http.raw_client import completion, connect, exchange, post, status_of

BOMB = gzip.compress(b" " * (1 << 20), mtime=0)


def _parts(answer: bytes) -> tuple[bytes, bytes]:
    head, _, body = answer.partition(b"\r\n\r\n")
    return head, body


def _dechunked(body: bytes) -> bytes:
    pieces = []
    while body:
        length, _, body = body.partition(b"\r\n")
        pieces.append(body[: int(length, 16)])
        body = body[int(length, 16) + 2 :]
    return b"".join(pieces)


def _ask(gateway: RunningGateway, body: bytes, *headers: str) -> bytes:
    return exchange(gateway, post("/v1/completions", body, "connection: close", *headers))


@pytest.mark.parametrize(
    ("coding", "compress"), [("gzip", gzip.compress), ("X-Gzip", gzip.compress), ("deflate", zlib.compress)]
)
def test_a_compressed_request_is_inflated(gateway: RunningGateway, coding: str, compress: Any) -> None:
    """The answer is that to the plain body."""
    plain = json.loads(_parts(_ask(gateway, completion()))[1])
    answer = json.loads(_parts(_ask(gateway, compress(completion()), f"content-encoding: {coding}"))[1])

    assert answer["choices"] == plain["choices"]


@pytest.mark.parametrize(
    ("coding", "body", "status", "word"),
    [
        ("br", b"x", 415, b"gzip, deflate"),
        ("gzip, gzip", b"x", 415, b"gzip, deflate"),
        ("gzip", b"{}", 400, b"not valid gzip"),
        ("gzip", gzip.compress(b"{}", mtime=0)[:-4], 400, b"ends early"),
        ("gzip", gzip.compress(b"{}", mtime=0) * 2, 400, b"more behind its end"),
        ("gzip", BOMB, 413, b"larger than 4096 bytes"),
    ],
)
def test_what_cannot_be_inflated_is_refused(
    loop: Loop, cluster: FakeCluster, coding: str, body: bytes, status: int, word: bytes
) -> None:
    """With the reason; a bomb is not inflated beyond the bound, and the connection goes on."""
    with loop.running(cluster, max_body_bytes=4096) as gateway:
        answer = exchange(
            gateway,
            post("/v1/completions", body, f"content-encoding: {coding}")
            + post("/v1/completions", completion(), "connection: close"),
        )

    assert status_of(answer) == status
    assert word in answer
    assert answer.count(b"HTTP/1.1 200 OK") == 1


def test_a_byte_order_mark_is_passed_over(gateway: RunningGateway) -> None:
    """RFC 8259, 8.1: a parser may ignore it; editors of Windows write it."""
    assert status_of(_ask(gateway, b"\xef\xbb\xbf" + completion())) == 200
    assert b"not valid UTF-8" in _ask(gateway, completion().decode().encode("utf-16"))


def test_a_whole_answer_is_compressed_for_who_asks(gateway: RunningGateway) -> None:
    """The same bytes otherwise, and caches are told."""
    get = "GET /openapi.json HTTP/1.1\r\nhost: x\r\nconnection: close\r\n{}\r\n"
    plain_head, plain = _parts(exchange(gateway, get.format("").encode()))
    head, body = _parts(exchange(gateway, get.format("accept-encoding: gzip, deflate\r\n").encode()))

    assert gzip.decompress(body) == plain
    assert len(body) * 3 < len(plain)
    assert b"content-encoding: gzip" in head
    assert b"vary: accept-encoding" in head
    assert b"encoding" not in plain_head


def test_each_event_of_a_compressed_stream_can_be_read_when_it_comes(
    gateway: RunningGateway, cluster: FakeCluster
) -> None:
    """The second one is made only after the first was read; all of them are those of a plain stream."""
    may_go_on = threading.Event()

    async def wait(request: Any) -> AsyncIterator[Any]:
        yield tokens(0, [104])
        await asyncio.to_thread(may_go_on.wait, 20)
        yield tokens(1, [105])
        yield finished(request, "decode-0")

    cluster.decodes[0].script = cluster.decodes[1].script = wait
    request = post("/v1/completions", completion(stream=True), "accept-encoding: gzip", "connection: close")
    with connect(gateway) as connection:
        connection.sendall(request)
        answer = b""
        while b"\r\n\r\n" not in answer or not zlib.decompressobj(31).decompress(_dechunked(_parts(answer)[1])):
            answer += connection.recv(65536)
        first = zlib.decompressobj(31).decompress(_dechunked(_parts(answer)[1]))
        may_go_on.set()
        answer += b"".join(iter(lambda: connection.recv(65536), b""))
    events = gzip.decompress(_dechunked(_parts(answer)[1]))

    assert b"content-encoding: gzip" in _parts(answer)[0]
    assert first.startswith(b"data: ")
    assert events.startswith(first)
    assert events.endswith(b"data: [DONE]\n\n")


def test_a_stream_that_fails_before_it_begins_is_answered_plainly(
    gateway: RunningGateway, cluster: FakeCluster
) -> None:
    """Its status and headers are those of the error."""
    head, body = _parts(_ask(gateway, completion(stream=True, max_tokens=0), "accept-encoding: gzip"))

    assert b"content-encoding" not in head
    assert "error" in json.loads(body)


@pytest.mark.parametrize(
    ("header", "is_wanted"),
    [
        ("gzip, deflate, br", True),
        ("br;q=1.0, GZIP ; q=0.5", True),
        ("x-gzip", True),
        ("gzip;q=0", False),
        ("gzip; q=0.000", False),
        ("*", False),
        ("identity", False),
        ("", False),
    ],
)
def test_gzip_is_for_those_who_name_it(header: str, is_wanted: bool) -> None:
    """Others may have named it as what they do not take."""
    assert accepts_gzip(header) is is_wanted


def test_every_answer_has_a_date(gateway: RunningGateway) -> None:
    """RFC 9110, 6.6.1: the time of the answer, of errors and streams too."""
    for answer in (
        _ask(gateway, completion()),
        _ask(gateway, completion(stream=True)),
        exchange(gateway, b"GET\r\n\r\n"),
    ):
        [line] = [line for line in answer.split(b"\r\n") if line.startswith(b"date: ")]
        date = email.utils.parsedate_to_datetime(line.removeprefix(b"date: ").decode())

        assert abs(date.timestamp() - time.time()) < 60
