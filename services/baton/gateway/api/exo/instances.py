"""Placements that benchmarks are held to, and how clients ask for them; never handles on processes."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from baton.capacity.snapshot import NodePair
from baton.errors import OverloadedError
from baton.gateway.api.errors import invalid
from baton.internal.v1.node_pb2 import NodeDescription
from baton.wire.node_roles import decodes, prefills, role_word

MAX_INSTANCES = 64
"""As many pins as the router takes in one request."""
GRACE_SECONDS = 10.0
"""Time for which the router may not list an instance's node: it registers again after a restart of the router."""


@dataclass(frozen=True, slots=True)
class Instance:
    """A pinned placement. Removing it stops nothing; it only lifts the pin."""

    instance_id: str
    model: str
    nodes: NodePair
    """Where requests run."""

    @property
    def node_ids(self) -> tuple[str, ...]:
        """Return the nodes in the order in which a request meets them."""
        decode, prefill = self.nodes
        return (prefill, decode) if prefill else (decode,)

    @property
    def prefiller(self) -> str:
        """Return the node that computes prompts."""
        return self.node_ids[0]


@dataclass(frozen=True, slots=True)
class InstanceLink:
    """Has some instances' nodes compute the prompts of others; it ends with the first of them that does."""

    link_id: str
    prefill_ids: tuple[str, ...]
    """Instances whose nodes compute prompts, and take no requests of their own."""
    decode_ids: tuple[str, ...]
    """Instances whose nodes generate."""


class Instances:
    """The pins of one gateway process, and the links between them, in the order in which they were made.

    Invariant: every instance's nodes have been listed by the router within `GRACE_SECONDS` of the router's last answer.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._instances: dict[str, Instance] = {}
        self._absent_since: dict[str, float] = {}
        self._links: dict[str, InstanceLink] = {}

    def add(self, instance: Instance) -> None:
        """Pin; an instance of the same id is replaced. Raises OverloadedError if there are too many."""
        if instance.instance_id not in self._instances:
            self._check_room(1)
        self._instances[instance.instance_id] = instance
        self._absent_since.pop(instance.instance_id, None)

    def remove(self, instance_id: str) -> bool:
        """Lift a pin, and its links; return whether there was one."""
        self._absent_since.pop(instance_id, None)
        self._links = {
            name: link for name, link in self._links.items() if instance_id not in link.prefill_ids + link.decode_ids
        }
        return self._instances.pop(instance_id, None) is not None

    def get(self, instance_id: str) -> Instance | None:
        """Return an instance, or None."""
        return self._instances.get(instance_id)

    def all(self) -> list[Instance]:
        """Return every instance."""
        return list(self._instances.values())

    def pins(self, model: str) -> tuple[NodePair, ...]:
        """Return the only places for benchmarks of a model; empty: any."""
        sources = {source for link in self._links.values() for source in link.prefill_ids}
        targets = {target for link in self._links.values() for target in link.decode_ids}
        own = [instance for instance in self._instances.values() if instance.model == model]
        taken = [instance for instance in own if instance.instance_id in targets or instance.instance_id not in sources]
        return tuple(dict.fromkeys(pair for instance in taken for pair in self._pairs(instance)))

    def link(self, link: InstanceLink) -> None:
        """Link instances; raise OverloadedError if there are too many."""
        self._check_room(len(link.prefill_ids) * len(link.decode_ids))
        self._links[link.link_id] = link

    def unlink(self, link_id: str) -> bool:
        """End a link; return whether there was one."""
        return self._links.pop(link_id, None) is not None

    def links(self) -> list[InstanceLink]:
        """Return every link."""
        return list(self._links.values())

    def note_nodes(self, node_ids: Collection[str]) -> None:
        """Take the nodes that the router lists now; drop instances whose nodes have been away for too long."""
        now = self._clock()
        for instance in self.all():
            if all(node_id in node_ids for node_id in instance.node_ids):
                self._absent_since.pop(instance.instance_id, None)
            elif now - self._absent_since.setdefault(instance.instance_id, now) >= GRACE_SECONDS:
                self.remove(instance.instance_id)

    def _pairs(self, instance: Instance) -> list[NodePair]:
        """Return an instance's nodes, or, where it is linked, its decode node with each that computes for it."""
        decode = instance.nodes.decode_node_id
        linked = [link for link in self._links.values() if instance.instance_id in link.decode_ids]
        prefillers = [self._instances[source].prefiller for link in linked for source in link.prefill_ids]
        return [NodePair(decode, "" if node == decode else node) for node in prefillers] or [instance.nodes]

    def _check_room(self, num_more: int) -> None:
        num_pairs = sum(len(link.prefill_ids) * len(link.decode_ids) for link in self._links.values())
        if len(self._instances) + num_pairs + num_more > MAX_INSTANCES:
            raise OverloadedError(f"there are {MAX_INSTANCES} instances and links already: delete one first")


_INSTANCE_ID = re.compile(r"[A-Za-z0-9-]{1,64}")
_NODES = "instance.shardAssignments.nodeToRunner"


class ShardAssignments(msgspec.Struct, rename="camel"):
    """Which nodes an instance has; other fields follow from them and are not read."""

    model_id: str
    node_to_runner: dict[str, str]


class InstanceView(msgspec.Struct, rename="camel"):
    """What the tag of an instance holds."""

    instance_id: str
    shard_assignments: ShardAssignments


class InstanceBody(msgspec.Struct, forbid_unknown_fields=True):
    """The body: an instance as GET /instance/previews shows it, under the one key that is its tag."""

    instance: dict[str, InstanceView]


def instance_view(body: InstanceBody) -> InstanceView:
    """Return the one instance of a body; raise ApiError, 400, naming what is missing."""
    if len(body.instance) != 1:
        raise invalid("instance", f"expected one key, its tag, got {len(body.instance)}")
    (view,) = body.instance.values()
    if not _INSTANCE_ID.fullmatch(view.instance_id):
        raise invalid("instance.instanceId", "expected 1 to 64 letters, digits or dashes")
    return view


def instance_of(view: InstanceView, nodes: Mapping[str, NodeDescription]) -> Instance:
    """Return the instance that a view shows; raise ApiError, 400, naming nodes that cannot work together."""
    assignments = view.shard_assignments
    return Instance(view.instance_id, assignments.model_id, _pair(assignments, nodes))


def _pair(assignments: ShardAssignments, nodes: Mapping[str, NodeDescription]) -> NodePair:
    """Return who does what: of two nodes that can do both the first prefills, as `Instance.node_ids` has them."""
    chosen: list[NodeDescription] = []
    for node_id in assignments.node_to_runner:
        node = nodes.get(node_id)
        if node is None or node.model_id != assignments.model_id:
            raise invalid(_NODES, f"no node {node_id[:63]!r} serves {assignments.model_id[:200]!r}")
        chosen.append(node)
    if len(chosen) == 1 and decodes(chosen[0]):
        return NodePair(chosen[0].node_id, "")
    for prefiller, decoder in (chosen, chosen[::-1]) if len(chosen) == 2 else ():
        if prefills(prefiller) and decodes(decoder):
            return NodePair(decoder.node_id, prefiller.node_id)
    roles = ", ".join(role_word(node.role) for node in chosen) or "none"
    raise invalid(_NODES, f"expected one node that decodes and at most one other that prefills, got roles {roles}")


class LinkBody(msgspec.Struct, forbid_unknown_fields=True):
    """What is linked, by the ids of instances."""

    prefill_instances: list[str]
    """Their first nodes compute prompts; requests of their own they take no more."""
    decode_instances: list[str]
    """Their nodes that decode generate."""


def link_of(link_id: str, body: LinkBody, instances: Instances, nodes: Mapping[str, NodeDescription]) -> InstanceLink:
    """Return the link of a body; raise ApiError, 400, naming an instance that is not there or computes for no other."""
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
