"""How settings name services."""

from __future__ import annotations

import asyncio
from urllib.parse import parse_qsl, urlsplit

import pytest

from baton.discovery.api_server import ApiServer
from baton.discovery.endpoints import FixedTarget, ServiceTarget, WatchError, parse_target
from baton.discovery.kubernetes_api import KubernetesEndpointApi
from baton.discovery.watch import open_source
from baton.errors import ConfigurationError
from http_double import Answer, Request, serving

_PATH = "/apis/discovery.k8s.io/v1/namespaces/llm/endpointslices"
_SELECTOR = "kubernetes.io/service-name=router"


@pytest.mark.parametrize(
    ("text", "target"),
    [
        ("127.0.0.1:8010", FixedTarget(frozenset({"127.0.0.1:8010"}))),
        ("a:1, [::1]:2", FixedTarget(frozenset({"a:1", "[::1]:2"}))),
        ("kubernetes://baton-router:grpc", ServiceTarget("baton-router", "", "grpc")),
        ("kubernetes://router.llm:8010", ServiceTarget("router", "llm", "8010")),
    ],
)
def test_addresses_and_services_are_told_apart(text: str, target: FixedTarget | ServiceTarget) -> None:
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


def test_inside_a_pod_its_account_and_namespace_are_taken() -> None:
    """The token as it is when something is asked, for Kubernetes replaces it."""
    tokens = iter(["at first", "at the list", "at the watch"])
    asked: list[Request] = []

    def answer(request: Request) -> Answer:
        asked.append(request)
        return Answer(200, b'{"metadata": {"resourceVersion": "7"}, "items": []}')

    with serving(answer) as url:
        target = ServiceTarget("router", "", "grpc")
        api = KubernetesEndpointApi(target, lambda: ApiServer(url, next(tokens), namespace="llm"))
        listing = asyncio.run(api.list_slices())
        with pytest.raises(StopAsyncIteration):  # a line that does not end is none
            asyncio.run(anext(api.watch_slices(listing.resource_version, 30.0)))

    assert [request.headers["Authorization"] for request in asked] == ["Bearer at the list", "Bearer at the watch"]
    assert [urlsplit(request.path).path for request in asked] == [_PATH, _PATH]
    assert [dict(parse_qsl(urlsplit(request.path).query)) for request in asked] == [
        {"labelSelector": _SELECTOR},
        {
            "labelSelector": _SELECTOR,
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": "7",
            "timeoutSeconds": "30",
        },
    ]


def test_an_account_that_goes_away_is_a_failure_of_discovery() -> None:
    """Which is tried again, as one of the API server's is."""
    servers = iter([ApiServer("http://127.0.0.1:1", "mine", namespace="llm")])

    def server() -> ApiServer:
        for each in servers:
            return each
        raise ConfigurationError("asking Kubernetes needs a pod with an account")

    api = KubernetesEndpointApi(ServiceTarget("router", "", "grpc"), server)

    with pytest.raises(WatchError, match="needs a pod with an account"):
        asyncio.run(api.list_slices())
