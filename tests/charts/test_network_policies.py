"""Pods may connect to each other along the arrows of the design, and no other way."""

from __future__ import annotations

import pytest

from charts.render import manifests_of, render
from tests.charts.rendering import ALL, EVERYTHING, MINIMAL, Manifest, find, manifests, pods, with_values

_PORTS = {
    "gateway": {8000, 8001},
    "router": {8010, 8012},
    "cache-index": {8011},
    "prefill": {8020, 8021},
    "decode": {8030},
    "worker": {8050, 8051},
    "test": set(),
    "authority": set(),
}
_ARROWS = {
    ("gateway", "router"),
    ("gateway", "decode"),
    ("router", "cache-index"),
    ("cache-index", "router"),
    ("prefill", "router"),
    ("prefill", "cache-index"),
    ("decode", "router"),
    ("decode", "cache-index"),
    ("decode", "prefill"),
    ("decode", "decode"),
    ("gateway", "worker"),
    ("worker", "router"),
    ("worker", "cache-index"),
    ("worker", "prefill"),
    ("worker", "decode"),
    ("worker", "worker"),
    ("decode", "worker"),
    ("test", "gateway"),
}
"""(caller, callee): docs/structures.md's table of processes, and the pod of `helm test`."""


@pytest.mark.parametrize("name", ALL)
def test_policies_allow_the_arrows_and_nothing_else(name: str) -> None:
    """For each pair of roles, a connection passes the caller's egress and the callee's ingress only along an arrow."""
    policies = _policies(manifests(name))
    allowed = {
        (caller, callee)
        for caller in policies
        for callee, ports in _PORTS.items()
        if callee in policies
        for port in ports
        if _lets_out(policies[caller], callee, port) and _lets_in(policies[callee], caller, port)
    }
    # A gateway is open to everybody, unless values say otherwise; who may not leave for it is held by its own policy.
    expected = {arrow for arrow in _ARROWS if set(arrow) <= set(policies)}
    if "join-pods" not in str(manifests(name)):
        expected -= {("cache-index", "router")}  # it asks routers for its certificate alone

    assert allowed == expected


@pytest.mark.parametrize("name", ALL)
def test_every_pod_is_under_a_policy(name: str) -> None:
    """No component is forgotten: each has a policy for both directions."""
    objects = manifests(name)
    policies = {each["metadata"]["name"]: each for each in objects if each["kind"] == "NetworkPolicy"}

    assert set(policies) == {pod_name for pod_name, _ in pods(objects)}
    assert {tuple(each["spec"]["policyTypes"]) for each in policies.values()} == {("Ingress", "Egress")}


def test_clients_may_be_named() -> None:
    """`gateway.allowFrom` closes the gateway to everybody else but the test pod."""
    policy = find(manifests("everything"), "NetworkPolicy", "baton-gateway")
    (rule,) = policy["spec"]["ingress"]

    assert rule["from"][0] == EVERYTHING["gateway"]["allowFrom"][0]
    assert [_role(peer) for peer in rule["from"][1:]] == ["test"]


def test_outside_machines_reach_router_index_and_prefill_from_their_networks_alone() -> None:
    """Bare-metal networks may come in where nodes register, publish, prefill, and hold blocks."""
    objects = manifests("everything")
    inward = {
        each["metadata"]["labels"]["app.kubernetes.io/component"]
        for each in objects
        if each["kind"] == "NetworkPolicy"
        for rule in each["spec"]["ingress"]
        for peer in rule.get("from", [])
        if peer.get("ipBlock", {}).get("cidr") == "10.1.0.0/16"
    }
    outward = {
        each["metadata"]["labels"]["app.kubernetes.io/component"]: {port["port"] for port in rule["ports"]}
        for each in objects
        if each["kind"] == "NetworkPolicy"
        for rule in each["spec"]["egress"]
        for peer in rule.get("to", [])
        if peer.get("ipBlock", {}).get("cidr") == "10.1.0.0/16"
    }

    ports = {8020, 8021, 8030, 8050, 8051}
    assert inward == {"router", "cache-index", "prefill", "decode", "worker"}
    assert outward == {"gateway": ports, "decode": ports, "worker": ports}


@pytest.mark.parametrize(
    ("endpoint", "port"), [("http://collector:4317", 4317), ("https://otel.example", 4317), ("http://c:55680/", 55680)]
)
def test_telemetry_may_leave_on_the_port_of_its_endpoint(endpoint: str, port: int) -> None:
    """Every component may reach the collector, and only where there is one."""
    with_telemetry = manifests_of(render(with_values(MINIMAL, "telemetry.otlpEndpoint", endpoint)))
    services = [
        each
        for each in with_telemetry
        if each["kind"] == "NetworkPolicy" and each["metadata"]["name"] not in ("baton-test", "baton-authority")
    ]

    assert len(services) == 5
    for each in services:
        assert each["spec"]["egress"][-1] == {"ports": [{"protocol": "TCP", "port": port}]}


def test_dns_may_be_asked_wherever_it_is_answered() -> None:
    """By default anywhere, on its ports alone: a cache on the node, or another namespace, is no pod in kube-system."""
    dns = [{"protocol": protocol, "port": port} for port in (53, 5353) for protocol in ("UDP", "TCP")]
    kube_system = [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "kube-system"}}}]
    named = with_values(with_values(MINIMAL, "networkPolicy.dns", kube_system), "networkPolicy.dnsPorts", [53])
    for values, rule in ((MINIMAL, {"ports": dns}), (named, {"to": kube_system, "ports": dns[:2]})):
        for each in manifests_of(render(values)):
            if each["kind"] == "NetworkPolicy":
                assert rule in each["spec"]["egress"], each["metadata"]["name"]


def test_a_download_may_leave_to_its_server() -> None:
    """The container that fetches the model shares its pod's policy."""
    policy = find(manifests("everything"), "NetworkPolicy", "baton-gateway")
    rule = {"to": [{"ipBlock": {"cidr": "10.0.0.0/8"}}], "ports": [{"protocol": "TCP", "port": 8443}]}

    assert rule in policy["spec"]["egress"]


def test_the_kubernetes_api_may_be_asked_by_those_who_follow_replicas_alone() -> None:
    """Pools for discovery, routers for keys, and the Job of the authority, to its networks where they are named."""
    values = with_values(
        with_values(MINIMAL, "discovery.enabled", True), "networkPolicy.apiServer.cidrs", ["10.96.0.1/32"]
    )
    rule = {
        "to": [{"ipBlock": {"cidr": "10.96.0.1/32"}}],
        "ports": [{"protocol": "TCP", "port": 443}, {"protocol": "TCP", "port": 6443}],
    }
    allowed = {
        each["metadata"]["name"]
        for each in manifests_of(render(values))
        if each["kind"] == "NetworkPolicy" and rule in each["spec"]["egress"]
    }

    assert allowed == {"baton-prefill-p", "baton-decode-d", "baton-router", "baton-authority"}


def test_a_target_of_discovery_is_a_service_and_its_port() -> None:
    """What nodes follow exists: a Service of that name, with a port of that name."""
    objects = manifests("gpu")
    services = {
        f"kubernetes://{each['metadata']['name']}:{port['name']}"
        for each in objects
        if each["kind"] == "Service"
        for port in each["spec"]["ports"]
    }
    targets = {
        text.partition("=")[2]
        for _, pod in pods(objects)
        for text in pod["containers"][0].get("args", [])
        if "kubernetes://" in text
    }

    assert targets == {"kubernetes://baton-router:grpc", "kubernetes://baton-cache-index:grpc"}
    assert targets <= services


def test_policies_can_be_left_out() -> None:
    """A cluster whose plugin has its own kind of policy turns them off."""
    objects = manifests_of(render(with_values(MINIMAL, "networkPolicy.enabled", False)))

    assert [each for each in objects if each["kind"] == "NetworkPolicy"] == []


def _policies(objects: list[Manifest]) -> dict[str, Manifest]:
    """Return the specification of one policy by role; those of a role's pools are alike in what they allow."""
    policies: dict[str, Manifest] = {}
    for each in objects:
        if each["kind"] == "NetworkPolicy":
            policies[each["metadata"]["labels"]["app.kubernetes.io/component"]] = each["spec"]
    return policies


def _lets_in(policy: Manifest, caller: str, port: int) -> bool:
    numbers = {"http": 8000, "grpc": 8001}
    return any(
        ("from" not in rule or caller in map(_role, rule["from"]))
        and ("ports" not in rule or port in {numbers.get(each["port"], each["port"]) for each in rule["ports"]})
        for rule in policy["ingress"]
    )


def _lets_out(policy: Manifest, callee: str, port: int) -> bool:
    return any(
        ("to" not in rule or callee in map(_role, rule["to"]))
        and ("ports" not in rule or port in {each["port"] for each in rule["ports"]})
        for rule in policy["egress"]
    )


def _role(peer: Manifest) -> str:
    labels = peer.get("podSelector", {}).get("matchLabels", {})
    return str(labels.get("app.kubernetes.io/component", "")) if "namespaceSelector" not in peer else ""
