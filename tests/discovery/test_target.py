"""How settings name services."""

from __future__ import annotations

import asyncio

import pytest

from baton.discovery import kubernetes_api
from baton.discovery.api_server import ApiServer
from baton.discovery.endpoints import ServiceTarget, parse_target
from baton.discovery.watch import open_source
from baton.errors import ConfigurationError
from http_double import Answer, Request, serving


@pytest.mark.parametrize(
    ("text", "target"),
    [
        ("127.0.0.1:8010", frozenset({"127.0.0.1:8010"})),
        ("a:1, [::1]:2", frozenset({"a:1", "[::1]:2"})),
        ("kubernetes://baton-router:grpc", ServiceTarget("baton-router", "", "grpc")),
        ("kubernetes://router.llm:8010", ServiceTarget("router", "llm", "8010")),
    ],
)
def test_addresses_and_services_are_told_apart(text: str, target: frozenset[str] | ServiceTarget) -> None:
    """Fixed addresses may be several; a Service may leave out its namespace."""
    assert parse_target(text) == target


@pytest.mark.parametrize(
    "text", ["", "host", "a:1,b", "kubernetes://router", "kubernetes://Router:grpc", "kubernetes:///router:1"]
)
def test_what_names_no_service_is_refused(text: str) -> None:
    """The message shows what was expected."""
    with pytest.raises(ConfigurationError, match=r"kubernetes://SERVICE\[\.NAMESPACE\]:PORT"):
        parse_target(text)


def test_outside_of_a_pod_a_service_cannot_be_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The message says what is missing."""
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)

    with pytest.raises(ConfigurationError, match="needs a pod with an account"):
        open_source("kubernetes://router:grpc")


def test_inside_a_pod_its_account_and_namespace_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """Read again for each request: Kubernetes replaces the token of a pod."""
    tokens = iter(("first", "second", "third"))
    asked: list[Request] = []

    def own() -> ApiServer:
        return ApiServer(url, next(tokens), namespace="llm")

    def answer(request: Request) -> Answer:
        asked.append(request)
        return Answer(200, b'{"metadata": {"resourceVersion": "7"}, "items": []}')

    with serving(answer) as url:
        monkeypatch.setattr(kubernetes_api, "own_api_server", own)
        api = kubernetes_api.in_cluster_api(ServiceTarget("router", "", "grpc"))
        listings = [asyncio.run(api.list_slices()) for _ in range(2)]

    assert [listing.resource_version for listing in listings] == ["7", "7"]
    assert [request.headers["authorization"] for request in asked] == ["Bearer second", "Bearer third"]
    assert all("/namespaces/llm/endpointslices?labelSelector=" in request.path for request in asked)
