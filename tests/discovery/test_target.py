"""How settings name services."""

from __future__ import annotations

from pathlib import Path

import pytest
from kubernetes.config import incluster_config

from baton.discovery import kubernetes_api
from baton.discovery.endpoints import FixedTarget, ServiceTarget, parse_target
from baton.discovery.watch import open_source
from baton.errors import ConfigurationError


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


def test_inside_a_pod_its_account_and_namespace_are_taken(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Kubernetes gives a pod the server's address by variables, and token, CA and namespace by files."""
    for name, content in {"token": "secret-token", "ca.crt": "a certificate", "namespace": "llm\n"}.items():
        (tmp_path / name).write_text(content)
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.96.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
    monkeypatch.setattr(incluster_config, "SERVICE_TOKEN_FILENAME", str(tmp_path / "token"))
    monkeypatch.setattr(incluster_config, "SERVICE_CERT_FILENAME", str(tmp_path / "ca.crt"))
    monkeypatch.setattr(kubernetes_api, "_NAMESPACE_FILE", tmp_path / "namespace")
    seen: list[tuple[object, ServiceTarget]] = []
    monkeypatch.setattr(kubernetes_api, "KubernetesEndpointApi", lambda *arguments: seen.append(arguments))

    kubernetes_api.in_cluster_api(ServiceTarget("router", "", "grpc"))

    ((configuration, target),) = seen
    assert configuration.host == "https://10.96.0.1:443"  # type: ignore[attr-defined]
    assert "secret-token" in str(configuration.api_key)  # type: ignore[attr-defined]
    assert target == ServiceTarget("router", "llm", "grpc")
