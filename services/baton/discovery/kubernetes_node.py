"""The Kubernetes node on which a pod runs: its labels, taints and what it can give."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from baton.discovery.api_server import ApiServer, own_api_server
from baton.discovery.endpoints import WatchError
from baton.errors import UnavailableError


@dataclass(frozen=True, slots=True)
class KubernetesNode:
    """What the cluster says of one node."""

    name: str
    labels: Mapping[str, str] = field(default_factory=dict)
    """Its labels, e.g. topology.kubernetes.io/zone."""
    taints: tuple[str, ...] = ()
    """KEY=VALUE:EFFECT or KEY:EFFECT, as kubectl writes them."""
    allocatable: Mapping[str, str] = field(default_factory=dict)
    """What it can give to pods, quantities by resource."""


def read_kubernetes_node(name: str, server: ApiServer | None = None) -> KubernetesNode:
    """Ask for a node; blocks. Raises ConfigurationError outside a pod with an account, WatchError without answer."""
    try:
        return node_of((server or own_api_server()).ask(f"/api/v1/nodes/{name}"))
    except UnavailableError as error:
        raise WatchError(error.message) from error


def node_of(content: bytes) -> KubernetesNode:
    """Return the node that a response describes, or raise WatchError."""
    try:
        document = json.loads(content)
        metadata, specification = document["metadata"], document.get("spec") or {}
        return KubernetesNode(
            str(metadata["name"]),
            {str(key): str(value) for key, value in (metadata.get("labels") or {}).items()},
            tuple(_taint(each) for each in specification.get("taints") or ()),
            {str(key): str(value) for key, value in ((document.get("status") or {}).get("allocatable") or {}).items()},
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise WatchError(f"the API server sent what is no node: {error!r}") from error


def _taint(taint: Mapping[str, str]) -> str:
    value = f"={taint['value']}" if taint.get("value") else ""
    return f"{taint['key']}{value}:{taint['effect']}"
