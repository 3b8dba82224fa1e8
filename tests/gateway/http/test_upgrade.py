"""Offers of another protocol are passed over: Java's HttpClient and `curl --http2` make one with each request."""

from __future__ import annotations

import pytest

from baton.gateway.http.messages import HeldBytes, HttpError, HttpRequest, RequestReader
from baton.gateway.server import RunningGateway
from gateway.fake_cluster import MODEL
from gateway.http.raw_client import completion, exchange, post

H2C = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAEAAEAAAAIAAAABAAMAAABkAAQBAAAA\r\n"
GET = b"GET /v1/models?limit=2 HTTP/1.1\r\nHost: a\r\n%b\r\n"
POST = b"POST /v1/completions HTTP/1.1\r\nHost: a\r\n%bContent-Length: 11\r\n\r\nhello GET /"
CHUNKED = b"POST /x HTTP/1.1\r\n%bHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n6\r\n GET /\r\n0\r\n\r\n"
OLD = b"POST /x HTTP/1.0\r\n%bContent-Length: 2\r\n\r\nhi"
MESSAGES = {"get": GET, "post": POST, "chunked": CHUNKED, "old": OLD}


def _reader(held: HeldBytes | None = None) -> RequestReader:
    return RequestReader(max_header_bytes=4096, max_body_bytes=1000, held=held or HeldBytes(1000))


def _read(*pieces: bytes) -> list[HttpRequest]:
    reader, requests = _reader(), []
    for piece in pieces:
        requests += reader.feed(piece)
    return requests


@pytest.mark.parametrize("message", MESSAGES.values(), ids=MESSAGES)
def test_an_offer_changes_nothing_wherever_its_bytes_are_split(message: bytes) -> None:
    """The request is what it is without the offer, body and all, and so is the one behind it."""
    [plain] = _read(message % b"")
    data = message % H2C

    for split in range(1, len(data)):
        again = message % H2C + message % b"" if plain.is_keep_alive else b""
        requests = _read(data[:split], data[split:] + again)
        for request in requests:
            request.headers = {name: request.headers[name] for name in plain.headers}

        assert requests == [plain] * (3 if again else 1)


def test_options_of_the_connection_beside_the_offer_hold() -> None:
    """It is closed if the client said so; other protocols than h2c are passed over as well."""
    [closing] = _read(b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close, Upgrade\r\nUpgrade: websocket\r\n\r\n")

    assert not closing.is_keep_alive
    assert "upgrade" not in closing.headers


def test_many_offers_in_one_read_are_requests_one_after_another() -> None:
    """As many as fit into a read."""
    assert len(_read(GET % H2C * 500)) == 500


def test_what_is_held_for_a_body_is_held_once() -> None:
    """The head is read twice."""
    held = HeldBytes(1000)
    reader = _reader(held)
    reader.feed((POST % H2C)[:-4])

    assert held.num_bytes == 7
    reader.close()
    assert held.num_bytes == 0


def test_the_client_is_asked_for_a_body_that_waits() -> None:
    """`curl --http2` with a large body expects 100-continue."""
    reader = _reader()
    assert reader.feed((POST % (H2C + b"Expect: 100-continue\r\n"))[:-11]) == []

    assert reader.take_continue()
    assert reader.phase == "body"


@pytest.mark.parametrize(
    "data",
    [
        b"CONNECT a:80 HTTP/1.1\r\nHost: a\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: a\r\n%bTransfer-Encoding: chunked\r\nTransfer-Encoding: x\r\n\r\n" % H2C,
        b"POST / HTTP/1.1\r\nHost: a\r\n%bTransfer-Encoding: chunked\r\nContent-Length: 4\r\n\r\n0\r\n\r\n" % H2C,
        b"POST / HTTP/1.1\r\nHost: a\r\n%bContent-Length: 4\r\nContent-Length: 5\r\n\r\n0\r\n\r\n" % H2C,
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    ],
    ids=["connect", "two codings", "coding and length", "two lengths", "http2"],
)
def test_an_offer_makes_nothing_valid_that_is_not(data: bytes) -> None:
    """Whoever stands before the gateway might see another body."""
    with pytest.raises(HttpError) as refusal:
        _read(data)

    assert refusal.value.status == 400


def test_a_request_with_an_offer_and_a_body_is_answered(gateway: RunningGateway) -> None:
    """And the connection serves the next one."""
    offering = post("/v1/completions", completion(), *H2C.decode().split("\r\n")[:-1])
    answer = exchange(gateway, offering + post("/v1/completions", completion(), "connection: close"))

    assert answer.count(b"HTTP/1.1 200 OK\r\n") == 2
    assert answer.count(f'"model":"{MODEL}"'.encode()) == 2
