"""Requests that are wrong before their body is read."""

from __future__ import annotations

import json

import pytest

from system.cluster import Cluster
from system.rest import CHAT, CHAT_PATH, ask, send_bytes

pytestmark = pytest.mark.usefixtures("bystander")

_BODY = json.dumps(CHAT).encode()
_MAX_BODY_BYTES = 8 << 20
_JSON_HEAD = b"POST %b HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n" % CHAT_PATH.encode()


@pytest.mark.parametrize(("method", "path", "allow"), [("GET", CHAT_PATH, "POST"), ("POST", "/v1/models", "GET")])
def test_a_wrong_method_is_refused_with_the_right_one(
    demo_cluster: Cluster, method: str, path: str, allow: str
) -> None:
    """405 and Allow."""
    reply = ask(demo_cluster, path, None, method=method)

    assert reply.error == (405, None, "method_not_allowed")
    assert reply.headers["allow"] == allow


@pytest.mark.parametrize("path", ["/", "/v1", "/v1/embeddings", "/v1/chat/completions/", "/v1/%2e%2e/health"])
def test_a_wrong_path_is_not_found(demo_cluster: Cluster, path: str) -> None:
    """404 with the path."""
    assert ask(demo_cluster, path, _BODY).error == (404, None, "unknown_url")


@pytest.mark.parametrize("content_type", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""])
def test_another_content_type_is_refused(demo_cluster: Cluster, content_type: str) -> None:
    """415: a web page of another origin could send these without asking, and so reach a gateway on this machine."""
    headers = {"content-type": content_type} if content_type else {}

    assert ask(demo_cluster, CHAT_PATH, _BODY, headers=headers).error == (415, None, "unsupported_media_type")


def test_a_content_type_may_have_parameters(demo_cluster: Cluster) -> None:
    """Upper case and a charset change nothing."""
    headers = {"content-type": "Application/JSON; charset=utf-8"}

    assert ask(demo_cluster, CHAT_PATH, _BODY, headers=headers).status == 200


def test_a_body_over_the_limit_is_refused(demo_cluster: Cluster) -> None:
    """413, whether its length is announced or not."""
    announced = _JSON_HEAD + b"content-length: %d\r\n\r\n" % (_MAX_BODY_BYTES + 1)
    chunk = b"100000\r\n" + b" " * 0x100000 + b"\r\n"
    chunked = _JSON_HEAD + b"transfer-encoding: chunked\r\n\r\n" + 9 * chunk

    for data in (announced, chunked):
        assert send_bytes(demo_cluster, data).startswith(b"HTTP/1.1 413 ")


@pytest.mark.parametrize("headers", [{"x-big": "a" * 100_000}, {f"x-{index}": "a" * 100 for index in range(90)}])
def test_a_head_over_the_limit_is_refused(demo_cluster: Cluster, headers: dict[str, str]) -> None:
    """431 for one huge header; many small ones within the limit pass."""
    status = ask(demo_cluster, CHAT_PATH, _BODY, headers={"content-type": "application/json", **headers}).status

    assert status == (431 if "x-big" in headers else 200)


@pytest.mark.parametrize(
    "data",
    [
        b"garbage\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"GET /v1/models HTTP/9.9\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: -5\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 99999999999999999999999\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\ncontent-length: 3\r\n\r\n{}",
        b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\ntransfer-encoding: chunked\r\n\r\n{}",
        _JSON_HEAD + b"transfer-encoding: chunked\r\n\r\nzz\r\n",
    ],
)
def test_what_is_no_http_is_refused(demo_cluster: Cluster, data: bytes) -> None:
    """400 with an error object, and the connection is closed."""
    head, _, body = send_bytes(demo_cluster, data).partition(b"\r\n\r\n")

    assert head.startswith(b"HTTP/1.1 400 ")
    assert json.loads(body)["error"]["type"] == "invalid_request_error"


def test_an_answer_to_head_has_no_body(demo_cluster: Cluster) -> None:
    """The next answer on the connection would be misread behind one."""
    data = b"HEAD /v1/models HTTP/1.1\r\nhost: x\r\n\r\nGET /health HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"
    first, _, rest = send_bytes(demo_cluster, data).partition(b"\r\n\r\n")

    assert first.startswith(b"HTTP/1.1 200 ")
    assert rest.startswith(b"HTTP/1.1 200 ")


def test_a_request_id_that_would_break_logs_is_refused(demo_cluster: Cluster) -> None:
    """Letters, digits and a few signs, 96 at most."""
    for request_id in ("a" * 97, "a b", "%0a"):
        headers = {"content-type": "application/json", "x-request-id": request_id}
        reply = ask(demo_cluster, CHAT_PATH, _BODY, headers=headers)

        assert reply.error == (400, "x-request-id", "invalid_value")
