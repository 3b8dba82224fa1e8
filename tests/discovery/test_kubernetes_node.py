"""Reading the Kubernetes node under a pod, from an HTTP server that answers as the API does."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from baton.discovery.api_server import ApiServer
from baton.discovery.endpoints import WatchError
from baton.discovery.kubernetes_node import KubernetesNode, node_of, read_kubernetes_node
from http_double import Answer, Request, serving

_NODE = {
    "metadata": {
        "name": "gpu-7",
        "labels": {"topology.kubernetes.io/zone": "eu-1a", "nvidia.com/gpu.product": "NVIDIA-H200"},
    },
    "spec": {
        "taints": [
            {"key": "nvidia.com/gpu", "effect": "NoSchedule"},
            {"key": "team", "value": "llm", "effect": "NoExecute"},
        ]
    },
    "status": {"allocatable": {"cpu": "63500m", "memory": "1Ti", "nvidia.com/gpu": "8"}},
}


def test_labels_taints_and_capacity_are_read() -> None:
    """By one request for the very node."""
    with _server(200, json.dumps(_NODE).encode()) as (server, paths):
        node = read_kubernetes_node("gpu-7", server)

    assert paths == ["/api/v1/nodes/gpu-7"]
    assert node == KubernetesNode(
        "gpu-7",
        {"topology.kubernetes.io/zone": "eu-1a", "nvidia.com/gpu.product": "NVIDIA-H200"},
        ("nvidia.com/gpu:NoSchedule", "team=llm:NoExecute"),
        {"cpu": "63500m", "memory": "1Ti", "nvidia.com/gpu": "8"},
    )


def test_a_node_may_say_little() -> None:
    """Labels, taints and capacity may be absent or null."""
    assert node_of(b'{"metadata": {"name": "a", "labels": null}, "spec": {}}') == KubernetesNode("a")


@pytest.mark.parametrize(
    ("status", "content", "said"), [(403, b"{}", "403"), (404, b"{}", "404"), (200, b"[", "no node")]
)
def test_a_refusal_says_what_happened(status: int, content: bytes, said: str) -> None:
    """An account that may not get nodes, a node that is gone, a server that is none."""
    with _server(status, content) as (server, _), pytest.raises(WatchError, match=said):
        read_kubernetes_node("gpu-7", server)


def test_a_server_that_is_away_is_an_error_of_its_own_kind() -> None:
    """Not one of the HTTP library."""
    with _server(200, b"") as (server, _):
        pass

    with pytest.raises(WatchError, match="cannot be reached"):
        read_kubernetes_node("gpu-7", server)


@contextmanager
def _server(status: int, content: bytes) -> Iterator[tuple[ApiServer, list[str]]]:
    paths: list[str] = []

    def answer(request: Request) -> Answer:
        paths.append(request.path)
        return Answer(status, content)

    with serving(answer) as url:
        yield ApiServer(url, "token"), paths
