"""Cross-origin requests of browsers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from baton.gateway.access.cors import Cors
from baton.gateway.http.messages import HttpRequest
from baton.gateway.http.response import HttpResponse
from baton.gateway.server import RunningGateway
from gateway.fake_cluster import MODEL, FakeCluster, Loop
from gateway.rest import ask

ORIGIN = "https://example.com"
TEXT = {"model": MODEL, "prompt": "hello", "max_tokens": 2}
PREFLIGHT = {
    "origin": ORIGIN,
    "access-control-request-method": "POST",
    "access-control-request-headers": "authorization, content-type, x-stainless-os",
}


@pytest.fixture
def open_gateway(loop: Loop, cluster: FakeCluster, tmp_path: Path) -> Iterator[RunningGateway]:
    """Run a gateway that allows two origins and asks for keys."""
    (tmp_path / "keys").write_text("me:secret\n")
    origins = f"http://localhost:3000, {ORIGIN}/"
    with loop.running(cluster, cors_allow_origins=origins, api_keys_file=tmp_path / "keys") as running:
        yield running


def _allowed(headers: object) -> set[str]:
    return {name for name in dict(headers) if name.startswith("access-control-")}  # type: ignore[call-overload]


def test_without_the_setting_no_page_is_allowed(gateway: RunningGateway) -> None:
    """Whatever it asks; the request itself is served, as a browser would not show the answer."""
    asked = ask(gateway, "/v1/completions", method="OPTIONS", headers=PREFLIGHT)
    sent = ask(gateway, "/v1/completions", TEXT, headers={"origin": ORIGIN})

    assert (asked.status, _allowed(asked.headers)) == (405, set())
    assert (sent.status, _allowed(sent.headers)) == (200, set())


def test_an_allowed_page_learns_what_it_may_send(open_gateway: RunningGateway) -> None:
    """Without a key: browsers ask without."""
    reply = ask(open_gateway, "/v1/completions", method="OPTIONS", headers=PREFLIGHT)

    assert (reply.status, reply.data) == (200, b"")
    assert reply.headers["access-control-allow-origin"] == ORIGIN
    assert reply.headers["access-control-allow-methods"] == "GET, POST, DELETE"
    assert reply.headers["access-control-allow-headers"] == PREFLIGHT["access-control-request-headers"]
    assert reply.headers["access-control-max-age"] == "600"
    assert reply.headers["vary"] == "origin"


def test_every_method_that_a_path_takes_is_allowed(open_gateway: RunningGateway) -> None:
    """Those of the cluster endpoints too."""
    reply = ask(open_gateway, "/instance/i-1", method="OPTIONS", headers=PREFLIGHT)

    allowed = set(reply.headers["access-control-allow-methods"].split(", "))
    paths = ask(open_gateway, "/openapi.json", headers={"authorization": "Bearer secret"}).body["paths"]
    assert allowed == {method.upper() for methods in paths.values() for method in methods}


@pytest.mark.parametrize("is_stream", [False, True])
def test_an_allowed_page_may_read_answers_and_refusals(open_gateway: RunningGateway, is_stream: bool) -> None:
    """Streams too, and the headers that clients use."""
    headers = {"origin": ORIGIN, "authorization": "Bearer secret"}
    served = ask(open_gateway, "/v1/completions", TEXT | {"stream": is_stream}, headers=headers)
    refused = ask(open_gateway, "/v1/completions", TEXT, headers={"origin": ORIGIN})

    assert (served.status, refused.status) == (200, 401)
    for reply in (served, refused):
        assert reply.headers["access-control-allow-origin"] == ORIGIN
        assert "x-request-id" in reply.headers["access-control-expose-headers"]


@pytest.mark.parametrize("origin", ["https://example.com.evil", "http://example.com", "null", "*"])
def test_another_page_is_not_allowed(open_gateway: RunningGateway, origin: str) -> None:
    """An origin is compared as a whole."""
    reply = ask(open_gateway, "/v1/completions", method="OPTIONS", headers=PREFLIGHT | {"origin": origin})

    assert _allowed(reply.headers) == set()
    assert reply.status == 401


def test_any_page_is_allowed_by_a_star(loop: Loop, cluster: FakeCluster) -> None:
    """Nothing is told of who it was."""
    with loop.running(cluster, cors_allow_origins="*") as running:
        reply = ask(running, "/v1/models", headers={"origin": "https://anything.example"})

    assert reply.headers["access-control-allow-origin"] == "*"


@pytest.mark.parametrize("method", ["OPTIONS", "POST"])
def test_a_question_of_a_browser_is_answered_and_no_request_is(method: str) -> None:
    """It would be answered a second time."""
    sent = list[int]()
    request = cast(HttpRequest, SimpleNamespace(method=method, headers=PREFLIGHT))
    response = SimpleNamespace(headers={}, send=lambda status, *_body, **_more: sent.append(status))

    is_answered = Cors([ORIGIN]).answer(request, cast(HttpResponse, response))

    assert (is_answered, sent) == ((True, [200]) if method == "OPTIONS" else (False, []))
