"""What pods may ask the Kubernetes API."""

from __future__ import annotations

import pytest

from tests.charts.rendering import ALL, manifests, pods


@pytest.mark.parametrize("name", ALL)
def test_only_nodes_that_follow_replicas_have_a_token(name: str) -> None:
    """Pools with discovery may read EndpointSlices of their namespace, nobody may do anything else."""
    objects = manifests(name)
    with_token = {pod_name for pod_name, pod in pods(objects) if pod["automountServiceAccountToken"]}
    following = {pod_name for pod_name, pod in pods(objects) if "--router-address=kubernetes://" in str(pod)}
    roles = {each["metadata"]["name"]: each["rules"] for each in objects if each["kind"] == "Role"}
    bound = {
        (each["roleRef"]["name"], subject["name"], subject["namespace"])
        for each in objects
        if each["kind"] == "RoleBinding"
        for subject in each["subjects"]
    }
    rule = {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": ["get", "list", "watch"]}

    assert with_token == following
    assert roles == {pod_name: [rule] for pod_name in following}
    assert bound == {(pod_name, pod_name, "llm") for pod_name in following}
    assert not any(each["kind"].startswith("Cluster") for each in objects)
    assert bool(following) == (name in ("gpu", "everything"))


@pytest.mark.parametrize("name", ALL)
def test_every_component_has_an_account_of_its_own(name: str) -> None:
    """A cluster's policies can tell them apart."""
    objects = manifests(name)
    accounts = {each["metadata"]["name"] for each in objects if each["kind"] == "ServiceAccount"}
    services = {pod_name: pod["serviceAccountName"] for pod_name, pod in pods(objects) if "serviceAccountName" in pod}

    assert services == {account: account for account in accounts}
