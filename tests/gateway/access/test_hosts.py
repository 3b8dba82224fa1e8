"""Names by which a gateway may be asked."""

from __future__ import annotations

from pathlib import Path

import pytest

from baton.gateway.access.hosts import Hosts

OWN = [
    "127.0.0.1",
    "127.0.0.1:8000",
    "192.168.1.5:80",
    "[::1]",
    "[fe80::1]:8000",
    "localhost:8000",
    "a.localhost",
    "baton-gateway",
    "baton-gateway.prod.svc:80",
    "baton-gateway.prod.svc.cluster.local",
    "Studio.local:8000",
    "box.corp.example:8000",
    "llm.example.com",
    "LLM.example.com.:443",
    "a.wild.example",
    "a.b.wild.example:443",
    "ported.example",
    "ported.example:9000",
    "",
]
STRANGE = [
    "evil.example",
    "127.0.0.1.evil.example",
    "evil.example:8000",
    "llm.example.com.evil.example",
    "a.llm.example.com",
    "local.evil.example",
    "wild.example.evil.example",
    "evilwild.example",
    "[evil.example]",
    "x@evil.example",
]


@pytest.mark.parametrize("host", OWN)
def test_addresses_private_names_and_those_that_were_given_are_own(host: str) -> None:
    """With a port or without."""
    assert Hosts(["llm.example.com", "*.wild.example", "ported.example:8443"], own_name="box.corp.example").is_allowed(
        host
    )


@pytest.mark.parametrize("host", STRANGE)
def test_a_name_that_a_stranger_may_have_registered_is_not(host: str) -> None:
    """Unless any is."""
    assert not Hosts(["llm.example.com", "*.wild.example"], own_name="box").is_allowed(host)
    assert Hosts(["*"], own_name="box").is_allowed(host)


def test_services_of_the_own_cluster_are_own(tmp_path: Path) -> None:
    """Under whatever domain it has, as a pod's resolver is told; other names of that domain may be anybody's."""
    resolver = tmp_path / "resolv.conf"
    resolver.write_text("search prod.svc.k8s.example.com svc.k8s.example.com k8s.example.com\nnameserver 10.96.0.10\n")
    hosts = Hosts([], own_name="pod", resolver_file=resolver)

    assert hosts.is_allowed("baton-gateway.prod.svc.k8s.example.com:80")
    assert not hosts.is_allowed("evil.k8s.example.com")
    assert not hosts.is_allowed("baton-gateway.prod.svc.evil.example")
    assert not Hosts([], own_name="pod", resolver_file=tmp_path).is_allowed("a.prod.svc.k8s.example.com")
