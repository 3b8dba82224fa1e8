"""Links between pinned placements: which computes prompts for which, as exo's disaggregated benchmark asks for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from baton.gateway.api.errors import invalid
from baton.gateway.api.exo.instances import Instance, InstanceLink, Instances
from baton.internal.v1.node_pb2 import NodeDescription
from baton.wire.node_roles import prefills


class LinkBody(msgspec.Struct, forbid_unknown_fields=True):
    """What is linked, by the ids of instances."""

    prefill_instances: list[str]
    """Their first nodes compute prompts; requests of their own they take no more."""
    decode_instances: list[str]
    """Their nodes that decode generate."""


def link_of(link_id: str, body: LinkBody, instances: Instances, nodes: Mapping[str, NodeDescription]) -> InstanceLink:
    """Return the link of a body.

    Raises:
        ApiError: 400, naming the instance that does not exist, or whose node does not compute for others.
    """
    sources = _instances("prefill_instances", body.prefill_instances, instances)
    targets = _instances("decode_instances", body.decode_instances, instances)
    link = InstanceLink(link_id, tuple(body.prefill_instances), tuple(body.decode_instances))
    for index, source in enumerate(sources):
        node = nodes.get(source.prefiller)
        is_alone = all(target.nodes.decode_node_id == source.prefiller for target in targets)
        if not is_alone and (node is None or not prefills(node)):
            raise invalid(f"prefill_instances[{index}]", f"its node {source.prefiller!r} does not prefill for others")
    return link


def links_document(links: Sequence[InstanceLink]) -> list[dict[str, Any]]:
    """Return GET /v1/instance-links."""
    return [
        {"linkId": link.link_id, "prefillInstances": link.prefill_ids, "decodeInstances": link.decode_ids}
        for link in links
    ]


def _instances(field: str, instance_ids: Sequence[str], instances: Instances) -> list[Instance]:
    if not instance_ids:
        raise invalid(field, "expected at least one instance")
    found = [instances.get(instance_id) for instance_id in instance_ids]
    if None in found:
        index = found.index(None)
        raise invalid(f"{field}[{index}]", f"there is no instance {instance_ids[index][:64]!r}")
    return [instance for instance in found if instance is not None]
