"""Offers of another protocol are passed over: Java's HttpClient and `curl --http2` make one with each request."""

from __future__ import annotations

import shutil
import subprocess

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


_JAVA_OFFER = (
    b"HTTP2-Settings: AAEAAEAAAAIAAAAAAAMAAAAAAAQBAAAAAAUAAEAAAAYABgAA\r\nUpgrade: h2c\r\n"
    b"Connection: Upgrade, HTTP2-Settings\r\nHost: 127.0.0.1:8000\r\n"
)
_CURL_HEAD = (
    b"Host: 127.0.0.1:8000\r\nUser-Agent: curl/7.88.1\r\nAccept: */*\r\nConnection: Upgrade, HTTP2-Settings\r\n"
    b"Upgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQCAAAAAAIAAAAA\r\n"
)
_PRETTY = b"""{
  "model" : "tiny",
  "messages" : [ {
    "role" : "user",
    "content" : "hello"
  } ],
  "max_tokens" : 2,
  "stream" : false
}"""
_COMPACT = b'{"messages":[{"content":"hello","role":"user"}],"model":"tiny","stream":false,"max_tokens":2}'
_CHAT = b"POST /v1/chat/completions HTTP/1.1\r\n"
_JSON = b"Content-Type: application/json\r\n"
CAPTURED = {
    "java get": b"GET /v1/models HTTP/1.1\r\nContent-Length: 0\r\n%bUser-Agent: Java-http-client/17.0.15\r\n\r\n"
    % _JAVA_OFFER,
    "langchain4j": b"%b%bContent-Length: %d\r\nAuthorization: Bearer none\r\n%bUser-Agent: langchain4j-openai\r\n\r\n%b"
    % (_CHAT, _JAVA_OFFER, len(_PRETTY), _JSON, _PRETTY),
    "spring": b"%b%bTransfer-encoding: chunked\r\nUser-Agent: Java-http-client/17.0.15\r\n"
    b"Accept: application/json, application/*+json\r\nAuthorization: Bearer none\r\n%b\r\n%x\r\n%b\r\n0\r\n\r\n"
    % (_CHAT, _JAVA_OFFER, _JSON, len(_COMPACT), _COMPACT),
    "curl get": b"GET /v1/models HTTP/1.1\r\n%b\r\n" % _CURL_HEAD,
    "curl post": b"%b%b%bContent-Length: %d\r\n\r\n%b" % (_CHAT, _CURL_HEAD, _JSON, len(_COMPACT), _COMPACT),
}
"""What Java's HttpClient sends as LangChain4j's and Spring's clients make requests, and `curl --http2`; read off."""


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


@pytest.mark.parametrize("data", CAPTURED.values(), ids=CAPTURED)
def test_what_clients_send_by_themselves_is_answered(gateway: RunningGateway, data: bytes) -> None:
    """In one packet or in two, split anywhere; and so is what they ask next."""
    [whole] = _read(data)
    assert all(_read(data[:split], data[split:]) == [whole] for split in range(1, len(data)))
    answer = exchange(gateway, data + b"GET /health HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")

    assert answer.count(b"HTTP/1.1 200 OK\r\n") == 2
    assert (b'"completion_tokens":2' if whole.body else b'"object":"list"') in answer


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
@pytest.mark.parametrize("options", [["--data-binary"], ["-H", "Transfer-Encoding: chunked", "--data-binary"]])
def test_curl_with_http2_is_answered(gateway: RunningGateway, options: list[str]) -> None:
    """It offers HTTP/2 and takes HTTP/1.1 for an answer."""
    url = f"http://127.0.0.1:{gateway.http_port}/v1/completions"
    command = ("curl", "-s", "--http2", "--max-time", "20", url, "-H", "Content-Type: application/json", *options, "@-")
    done = subprocess.run(command, input=completion(), capture_output=True, check=True)

    assert b'"completion_tokens":2' in done.stdout
