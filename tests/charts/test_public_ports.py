"""What the chart says of the gateway's public ports: their TLS, and the names they are called by."""

from __future__ import annotations

from typing import Any

import pytest

from charts.render import manifests_of, render
from tests.charts.rendering import MINIMAL, find, with_values

_KEYS = {"apiKeys.existingSecret": "keys", "test": "keys"}
_OWN = {"tls.existingSecret": "public"}
_INGRESS = {"ingress": {"enabled": True, "hosts": ["a.example"], "tlsSecret": "t"}}
_REST_ROUTE = {"httpRoute": {"enabled": True, "parentRefs": [{"name": "g"}], "hostnames": ["b.example"]}}
_GRPC_ROUTE = {"grpcRoute": {"enabled": True, "parentRefs": [{"name": "g"}], "hostnames": ["g.example"]}}


@pytest.mark.parametrize(
    ("changes", "relies_on"),
    [
        (_OWN, []),
        (_OWN | {"settings.grpcTls": False}, ["--insecure=true"]),
        (_INGRESS, ["--insecure=true"]),
        (_GRPC_ROUTE, ["--insecure=true"]),
        (_INGRESS | _GRPC_ROUTE, ["--tls-ends-upstream=true"]),
        (_REST_ROUTE | _GRPC_ROUTE, ["--tls-ends-upstream=true"]),
    ],
)
def test_tls_is_claimed_where_both_ports_have_it(changes: dict[str, Any], relies_on: list[str]) -> None:
    """Their own, or that of what stands before them; else the gateway is told that one is open, and starts."""
    flags = _gateway_flags(_KEYS | changes)

    assert [flag for flag in flags if flag in ("--insecure=true", "--tls-ends-upstream=true")] == relies_on


def test_client_certificates_keep_strangers_from_ports_with_tls_alone() -> None:
    """A gRPC port whose TLS a Gateway ends sees none, and would refuse to start without keys."""
    values = {"tls.existingSecret": "public", "tls.clientCertificates": True}
    before_grpc = _GRPC_ROUTE | {"settings.grpcTls": False}

    assert "--insecure=true" not in _gateway_flags(values)
    assert "--insecure=true" in _gateway_flags(values | before_grpc)
    assert "whoever reaches the gateway" in _notes(_values(values | before_grpc))


def test_names_of_the_settings_stand_beside_those_of_the_chart() -> None:
    """None of them is lost."""
    flags = _gateway_flags(_INGRESS | {"settings.allowedHosts": "lb.example,c.example"})

    assert [flag for flag in flags if "allowed-hosts" in flag] == [
        "--allowed-hosts=baton-gateway.llm,a.example,lb.example,c.example"
    ]


def test_an_ingress_that_speaks_tls_to_the_gateway_stands_beside_its_certificate() -> None:
    """By the controller's annotation; and a Gateway before a gRPC port that is plain."""
    annotations = {"nginx.ingress.kubernetes.io/backend-protocol": "HTTPS"}

    render(_values(_OWN | {"ingress": _INGRESS["ingress"] | {"annotations": annotations}}))
    flags = _gateway_flags(_KEYS | _OWN | _GRPC_ROUTE | {"settings.grpcTls": False})

    assert "--tls-ends-upstream=true" in flags
    assert "--insecure=true" not in flags


def test_notes_say_what_is_open() -> None:
    """And nothing else; with client certificates whoever has none is kept out, and no test is offered."""
    minimal = _notes(_values({}))
    closed = _notes(_values(_OWN | {"tls.clientCertificates": True}))
    guarded = _notes(_values({}) | {"tls": {"enabled": False}})
    plain = _notes(_values({}) | {"tls": {"enabled": False}, "networkPolicy": {"enabled": False}})

    assert "clients of REST and gRPC have no TLS" in minimal
    assert "whoever reaches the gateway" in minimal
    assert "`helm test baton" in minimal
    assert "between pods have no TLS" not in minimal
    assert "NetworkPolicies alone keep" in guarded
    assert "nothing keeps others" in plain
    assert not any(text in closed for text in ("clients of", "whoever reaches the gateway", "helm test"))


def _notes(values: dict[str, Any]) -> str:
    return next(text for path, text in render(values).items() if path.endswith("NOTES.txt"))


def _values(changes: dict[str, Any]) -> dict[str, Any]:
    values: dict[str, Any] = dict(MINIMAL)
    for path, value in changes.items():
        values = with_values(values, "test.apiKeySecret" if path == "test" else f"gateway.{path}", value)
    return values


def _gateway_flags(changes: dict[str, Any]) -> list[str]:
    (container,) = find(manifests_of(render(_values(changes))), "Deployment", "baton-gateway")["spec"]["template"][
        "spec"
    ]["containers"]
    flags: list[str] = container["args"]
    return flags
