"""What routers are told of a node: its description as a message, its device, and where in Kubernetes it runs."""

from __future__ import annotations

import logging
import uuid
from dataclasses import replace
from datetime import UTC, datetime
from hashlib import blake2b
from pathlib import Path

from baton.capacity.cost import NodeProfile
from baton.discovery.endpoints import WatchError
from baton.discovery.kubernetes_node import KubernetesNode, read_kubernetes_node
from baton.engine.runners.base import ModelInfo, Runner
from baton.internal.v1 import node_pb2
from baton.node.settings import NodeSettings
from baton.wire.kv import layout_to_proto
from baton.wire.quantities import profile_to_proto, shape_to_proto


def describe_engine(runner: Runner, profile: NodeProfile) -> node_pb2.NodeDescription:
    """Return what a node's runner says of it. The longest sequence announced fits both context and blocks."""
    info = runner.info
    max_context_tokens = min(info.max_context_tokens, runner.num_blocks * runner.block_tokens)
    message = profile_to_proto(profile, source="declared" if info.engine == "mock" else "measured")
    message.measured_at.FromDatetime(datetime.now(UTC))
    return node_pb2.NodeDescription(
        engine=info.engine,
        device=info.device,
        model_id=info.layout.model_id,
        kv_layout=layout_to_proto(info.layout),
        model_shape=shape_to_proto(replace(info.shape, max_context_tokens=max_context_tokens)),
        profile=message,
        model_context_token_count=info.max_context_tokens,
        block_count=runner.num_blocks,
        block_count_cause=runner.num_blocks_cause,
        block_token_count=runner.block_tokens,
        tokenizer_digest=info.layout.tokenizer_digest,
        eos_token_ids=info.eos_token_ids,
        adapters=[node_pb2.Adapter(name=each.name, digest=each.digest) for each in info.adapters],
    )


BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
"""Differs between machines, and is equal in all containers of one; of Linux."""


def device_id(info: ModelInfo, *, num_threads: int, num_cores: int, boot_id: Path = BOOT_ID) -> str:
    """Return MACHINE/DEVICE, equal for processes that take time of one device, unlike for all others.

    A mock engine is a device of its own, and so is a process on the CPU that takes no more than half of the cores: two
    of these have room beside each other. `boot_id` names the machine where it exists; elsewhere its network address
    does.
    """
    machine = boot_id.read_text("ascii") if boot_id.is_file() else f"{uuid.getnode():x}"
    name = blake2b(machine.strip().encode("ascii"), digest_size=4).hexdigest()
    if info.accelerator_id:
        return f"{name}/{info.accelerator_id}"
    if info.engine == "mock" or 2 * num_threads <= num_cores:
        return f"{name}/{info.engine}-{uuid.uuid4().hex[:8]}"
    return f"{name}/cpu"


log = logging.getLogger(__name__)


def find_location(settings: NodeSettings) -> node_pb2.KubernetesPlace | None:
    """Return where the node runs; None outside Kubernetes. Blocks while the API is asked, if the settings want that.

    A node that cannot be read is told by its name alone: what runs there computes as well. Raises ConfigurationError if
    the settings want the node read, and this is no pod with an account.
    """
    if not settings.kubernetes_node:
        return None
    node = KubernetesNode(settings.kubernetes_node)
    if settings.read_kubernetes_node:
        try:
            node = read_kubernetes_node(settings.kubernetes_node)
        except WatchError as error:
            log.warning("kubernetes_node_unread node=%s cause=%s", node.name, error.message)
    return node_pb2.KubernetesPlace(
        node_name=node.name,
        labels=node.labels,
        taints=node.taints,
        allocatable=node.allocatable,
        accelerator_counts=settings.accelerator_counts,
    )
