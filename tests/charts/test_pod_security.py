"""Pods pass the restricted Pod Security Standard, unless the values say that the namespace allows more.

Source: https://kubernetes.io/docs/concepts/security/pod-security-standards, restricted and baseline, as of 1.33.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from charts.render import manifests_of, render
from tests.charts.rendering import ALL, MINIMAL, Manifest, containers, find, manifests, pods, with_values

_RESTRICTED = [name for name in ALL if name != "gpu-plus-apple"]
_VOLUMES = {"configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim", "projected", "secret"}


@pytest.mark.parametrize("name", _RESTRICTED)
def test_pods_pass_the_restricted_profile(name: str) -> None:
    """Nothing that an admission controller at level restricted would refuse."""
    objects = manifests(name)

    assert [f"{pod_name}: {rule}" for pod_name, pod in pods(objects) for rule in violations(pod)] == []
    assert len(list(pods(objects))) >= 5


def test_only_what_the_values_ask_for_leaves_the_profile() -> None:
    """With hostPath weights and host ports, the rest is still restricted."""
    broken = {rule for _, pod in pods(manifests("gpu-plus-apple")) for rule in violations(pod)}

    assert broken == {"volume weights is a hostPath", "container prefill has a host port"}


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("hostNetwork", True),
        ("securityContext", {"runAsNonRoot": True}),
        ("containers.0.securityContext.privileged", True),
        ("containers.0.securityContext.capabilities", {"drop": ["NET_RAW"]}),
        ("containers.0.securityContext.runAsUser", 0),
        ("containers.0.securityContext.readOnlyRootFilesystem", False),
    ],
)
def test_the_check_finds_a_pod_that_breaks_a_rule(path: str, value: object) -> None:
    """Each rule fails where it should."""
    pod = find(manifests("minimal"), "Deployment", "baton-router")["spec"]["template"]["spec"]
    target: Any = pod
    *parents, last = path.split(".")
    for key in parents:
        target = target[int(key)] if key.isdigit() else target[key]
    target[last] = value
    if path == "securityContext":
        del pod["containers"][0]["securityContext"]["seccompProfile"]

    assert list(violations(pod)) != []


@pytest.mark.parametrize("name", ALL)
def test_every_container_has_requests_and_a_memory_limit(name: str) -> None:
    """No pod is of the class that is evicted first, and none can take a machine's memory."""
    for pod_name, pod in pods(manifests(name)):
        for container in containers(pod):
            assert {"cpu", "memory"} <= set(container["resources"]["requests"]), pod_name
            assert "memory" in container["resources"]["limits"], pod_name


def test_an_image_volume_is_read_from_below_its_mount() -> None:
    """`model.source.image` becomes an image volume, and the path below it the model's folder."""
    values = with_values(MINIMAL, "model.source", {"image": {"reference": "r.example/m:1", "path": "/llama/"}})
    values["podSecurity"] = "baseline"
    pod = find(manifests_of(render(values)), "Deployment", "baton-decode-d")["spec"]["template"]["spec"]
    (container,) = pod["containers"]

    assert pod["volumes"][1] == {
        "name": "weights",
        "image": {"reference": "r.example/m:1", "pullPolicy": "IfNotPresent"},
    }
    assert "--model-dir=/models/weights/llama" in container["args"]
    assert container["volumeMounts"][1] == {"name": "weights", "mountPath": "/models/weights", "readOnly": True}


def test_the_cluster_may_choose_the_user() -> None:
    """OpenShift gives each namespace a range of its own, and refuses pods that name another; never root."""
    for name, pod in pods(manifests_of(render(with_values(MINIMAL, "runAsUser", 0)))):
        context = pod["securityContext"]

        assert context["runAsNonRoot"] is True, name
        assert not {"runAsUser", "runAsGroup", "fsGroup"} & context.keys(), name


def violations(pod: Manifest) -> Iterator[str]:
    """Yield every rule of the restricted profile, and of this chart, that a pod breaks."""
    for key in ("hostNetwork", "hostPID", "hostIPC"):
        if pod.get(key):
            yield key
    for volume in pod.get("volumes", []):
        (kind,) = set(volume) - {"name"}
        if kind not in _VOLUMES:
            yield f"volume {volume['name']} is a {kind}"
    for container in containers(pod):
        for rule in _container_violations(pod.get("securityContext", {}), container):
            yield f"container {container['name']} {rule}"


def _container_violations(pod_context: Manifest, container: Manifest) -> Iterator[str]:
    own = container.get("securityContext", {})
    context = {**pod_context, **own}
    if context.get("privileged"):
        yield "is privileged"
    if own.get("allowPrivilegeEscalation") is not False:
        yield "may escalate"
    if own.get("capabilities") != {"drop": ["ALL"]}:
        yield "has capabilities"
    if not context.get("runAsNonRoot") or context.get("runAsUser") == 0:
        yield "may run as root"
    if context.get("seccompProfile", {}).get("type") not in ("RuntimeDefault", "Localhost"):
        yield "has no seccomp profile"
    if own.get("readOnlyRootFilesystem") is not True:
        yield "can write its root file system"
    if any(port.get("hostPort") for port in container.get("ports", [])):
        yield "has a host port"
