"""The Kubernetes node on which a pod runs: its labels, taints and what it can give."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from baton.discovery.endpoints import WatchError
from baton.discovery.kubernetes_api import in_cluster_configuration

_READ_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class KubernetesNode:
    """What the cluster says of one node."""

    name: str
    """Its name."""
    labels: Mapping[str, str] = field(default_factory=dict)
    """Its labels, e.g. topology.kubernetes.io/zone."""
    taints: tuple[str, ...] = ()
    """KEY=VALUE:EFFECT or KEY:EFFECT, as kubectl writes them."""
    allocatable: Mapping[str, str] = field(default_factory=dict)
    """What it can give to pods, quantities by resource."""


def read_kubernetes_node(name: str, configuration: Any = None) -> KubernetesNode:
    """Ask the Kubernetes API for a node; blocks.

    Args:
        name: Of the node.
        configuration: A `kubernetes.client.Configuration`; None: that of this pod.

    Raises:
        ConfigurationError: If this is no pod with an account, or the Kubernetes client is not installed.
        WatchError: If the server cannot be asked, refuses, or sends no node.
    """
    configuration = configuration or in_cluster_configuration()
    from kubernetes.client import ApiClient, ApiException, CoreV1Api
    from urllib3.exceptions import HTTPError

    configuration.retries = False
    try:
        response = CoreV1Api(ApiClient(configuration)).read_node(
            name, _preload_content=False, _request_timeout=_READ_SECONDS
        )
        content = response.read()
    except ApiException as error:
        raise WatchError(f"the API server answered {error.status} {error.reason} about node {name}") from error
    except (HTTPError, OSError) as error:
        raise WatchError(f"the API server cannot be reached: {error}") from error
    if response.status != 200:
        raise WatchError(f"the API server answered {response.status} {response.reason} about node {name}")
    return node_of(content)


def node_of(content: bytes) -> KubernetesNode:
    """Return the node that a response describes.

    Raises:
        WatchError: If it describes none.
    """
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
