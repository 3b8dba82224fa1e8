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


def test_names_of_the_settings_stand_beside_those_of_the_chart() -> None:
    """None of them is lost."""
    flags = _gateway_flags(_INGRESS | {"settings.allowedHosts": "lb.example,c.example"})

    assert [flag for flag in flags if "allowed-hosts" in flag] == [
        "--allowed-hosts=baton-gateway.llm,a.example,lb.example,c.example"
    ]


def _gateway_flags(changes: dict[str, Any]) -> list[str]:
    values: dict[str, Any] = dict(MINIMAL)
    for path, value in changes.items():
        values = with_values(values, "test.apiKeySecret" if path == "test" else f"gateway.{path}", value)
    (container,) = find(manifests_of(render(values)), "Deployment", "baton-gateway")["spec"]["template"]["spec"][
        "containers"
    ]
    flags: list[str] = container["args"]
    return flags
