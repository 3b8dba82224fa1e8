"""What pods may ask the Kubernetes API."""

from __future__ import annotations

import pytest

from tests.charts.rendering import ALL, manifests, pods


@pytest.mark.parametrize("name", ALL)
def test_no_pod_has_a_token(name: str) -> None:
    """Nothing in Baton asks the API, so no token is mounted and no role bound."""
    objects = manifests(name)

    assert {pod["automountServiceAccountToken"] for _, pod in pods(objects)} == {False}
    assert {each["kind"] for each in objects} & {"Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding"} == set()


@pytest.mark.parametrize("name", ALL)
def test_every_component_has_an_account_of_its_own(name: str) -> None:
    """A cluster's policies can tell them apart."""
    objects = manifests(name)
    accounts = {each["metadata"]["name"] for each in objects if each["kind"] == "ServiceAccount"}
    services = {pod_name: pod["serviceAccountName"] for pod_name, pod in pods(objects) if "serviceAccountName" in pod}

    assert services == {account: account for account in accounts}
