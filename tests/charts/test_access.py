"""What pods may ask the Kubernetes API."""

from __future__ import annotations

import pytest

from tests.charts.rendering import ALL, Manifest, manifests, pods

_SLICES = {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": ["get", "list", "watch"]}
_SECRETS = {"apiGroups": [""], "resources": ["secrets"], "verbs": ["create"]}
_LEASE = [
    {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["create"]},
    {
        "apiGroups": ["coordination.k8s.io"],
        "resources": ["leases"],
        "resourceNames": ["baton-router"],
        "verbs": ["get", "update"],
    },
]
_NODES = {"apiGroups": [""], "resources": ["nodes"], "verbs": ["get"]}


@pytest.mark.parametrize("name", ALL)
def test_only_nodes_that_ask_kubernetes_have_a_token(name: str) -> None:
    """Pools with discovery may read EndpointSlices of their namespace, or get nodes.

    Routers that sign for pods may what every account may, those that plan have a Lease, a Job may make Secrets, and
    nobody anything else.
    """
    objects = manifests(name)
    with_token = {pod_name for pod_name, pod in pods(objects) if pod["automountServiceAccountToken"]}
    following = {pod_name for pod_name, pod in pods(objects) if "--router-address=kubernetes://" in str(pod)}
    reading = {pod_name for pod_name, pod in pods(objects) if "--read-kubernetes-node=true" in str(pod)}

    signing = {pod_name for pod_name, pod in pods(objects) if "--join-pods=" in str(pod)}
    leading = {pod_name for pod_name, pod in pods(objects) if "--models-lease=" in str(pod)}
    making = {"baton-authority": [_SECRETS]} if "baton-authority" in {name for name, _ in pods(objects)} else {}

    assert with_token == following | reading | signing | leading | set(making)
    assert _rules(objects, "Role") == {pod_name: [_SLICES] for pod_name in following} | making | dict.fromkeys(
        leading, _LEASE
    )
    assert _rules(objects, "ClusterRole") == {f"llm-{pod_name}": [_NODES] for pod_name in reading}
    assert _bound(objects, "Role") == {(pod_name, pod_name, "llm") for pod_name in (*following, *making, *leading)}
    assert _bound(objects, "ClusterRole") == {(f"llm-{pod_name}", pod_name, "llm") for pod_name in reading}
    assert bool(reading) == (name in ("gpu", "everything"))


@pytest.mark.parametrize("name", ALL)
def test_every_component_has_an_account_of_its_own(name: str) -> None:
    """A cluster's policies can tell them apart."""
    objects = manifests(name)
    accounts = {each["metadata"]["name"] for each in objects if each["kind"] == "ServiceAccount"}
    services = {pod_name: pod["serviceAccountName"] for pod_name, pod in pods(objects) if "serviceAccountName" in pod}

    assert services == {account: account for account in accounts}


def _rules(objects: list[Manifest], kind: str) -> dict[str, object]:
    return {each["metadata"]["name"]: each["rules"] for each in objects if each["kind"] == kind}


def _bound(objects: list[Manifest], kind: str) -> set[tuple[str, str, str]]:
    return {
        (each["roleRef"]["name"], subject["name"], subject["namespace"])
        for each in objects
        if each["kind"] == f"{kind}Binding" and each["roleRef"]["kind"] == kind
        for subject in each["subjects"]
    }
