"""Where in Kubernetes a node runs, and what its pod was given."""

from __future__ import annotations

import logging

from baton.discovery.endpoints import WatchError
from baton.discovery.kubernetes_node import KubernetesNode, read_kubernetes_node
from baton.internal.v1 import node_pb2
from baton.node.settings import NodeSettings

log = logging.getLogger(__name__)


def find_location(settings: NodeSettings) -> node_pb2.KubernetesPlace | None:
    """Return where the node runs; None outside Kubernetes. Blocks while the API is asked, if the settings want that.

    A node that cannot be read is told by its name alone: what runs there computes as well.

    Raises:
        ConfigurationError: If the settings want the node read, and this is no pod with an account.
    """
    if not settings.kubernetes_node:
        return None
    node = KubernetesNode(settings.kubernetes_node)
    if settings.read_kubernetes_node:
        try:
            node = read_kubernetes_node(settings.kubernetes_node)
        except WatchError as error:
            log.warning("kubernetes_node_unread node=%s cause=%s", node.name, error.message)
    return location_to_proto(node, settings.accelerator_counts)


def location_to_proto(node: KubernetesNode, accelerator_counts: dict[str, int]) -> node_pb2.KubernetesPlace:
    """Return a place as a message."""
    return node_pb2.KubernetesPlace(
        node_name=node.name,
        labels=node.labels,
        taints=node.taints,
        allocatable=node.allocatable,
        accelerator_counts=accelerator_counts,
    )
