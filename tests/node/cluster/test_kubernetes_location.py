"""What a node tells of where it runs."""

from __future__ import annotations

from typing import Any

import pytest

from baton.decode.settings import DecodeSettings
from baton.demo import checkpoint_dir
from baton.discovery.endpoints import WatchError
from baton.discovery.kubernetes_node import KubernetesNode
from baton.node.cluster import description
from baton.node.cluster.description import find_location

_NODE = KubernetesNode("gpu-7", {"topology.kubernetes.io/zone": "eu-1a"}, ("a:NoSchedule",), {"cpu": "8"})


def test_outside_kubernetes_there_is_none() -> None:
    """A node on a bare machine says nothing."""
    assert find_location(_settings()) is None


def test_a_pod_tells_its_node_and_accelerators() -> None:
    """Without a right to read the node, its name and what the pod was given."""
    found = find_location(_settings(kubernetes_node="gpu-7", accelerators="nvidia.com/gpu=2"))

    assert found is not None
    assert (found.node_name, dict(found.accelerator_counts), dict(found.labels)) == ("gpu-7", {"nvidia.com/gpu": 2}, {})


def test_a_pod_that_may_tells_labels_taints_and_capacity(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the API says of its node."""
    monkeypatch.setattr(description, "read_kubernetes_node", lambda name: _NODE if name == "gpu-7" else None)
    found = find_location(_settings(kubernetes_node="gpu-7", read_kubernetes_node=True))

    assert found is not None
    assert (dict(found.labels), list(found.taints), dict(found.allocatable)) == (
        _NODE.labels,
        list(_NODE.taints),
        _NODE.allocatable,
    )


def test_a_node_that_cannot_be_read_ends_nothing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The name is told, and the log says why no more."""

    def refuse(_name: str) -> None:
        raise WatchError("the API server answered 403 Forbidden about node gpu-7")

    monkeypatch.setattr(description, "read_kubernetes_node", refuse)
    found = find_location(_settings(kubernetes_node="gpu-7", read_kubernetes_node=True))

    assert found is not None
    assert found.node_name == "gpu-7"
    assert "403 Forbidden" in caplog.text


@pytest.mark.parametrize("text", ["nvidia.com/gpu", "nvidia.com/gpu=0", "=2", "a=b"])
def test_accelerators_have_a_resource_and_a_count(text: str) -> None:
    """Anything else is refused by the name of the setting."""
    with pytest.raises(ValueError, match="accelerators"):
        _settings(accelerators=text)


def _settings(**fields: Any) -> DecodeSettings:
    return DecodeSettings(model_dir=checkpoint_dir(), **fields)
