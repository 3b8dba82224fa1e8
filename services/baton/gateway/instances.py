"""Placements that benchmarks are held to: views of pairs of nodes, never handles on processes."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

from baton.capacity.snapshot import NodePair
from baton.errors import OverloadedError

MAX_INSTANCES = 64
"""As many pins as the router takes in one request."""
GRACE_SECONDS = 10.0
"""Time for which the router may not list an instance's node: it registers again after a restart of the router."""


@dataclass(frozen=True, slots=True)
class Instance:
    """A pinned placement. Removing it stops nothing; it only lifts the pin."""

    instance_id: str
    """Chosen by whoever made it."""
    model: str
    """Served name."""
    nodes: NodePair
    """Where requests run."""

    @property
    def node_ids(self) -> tuple[str, ...]:
        """Return the nodes in the order in which a request meets them."""
        decode, prefill = self.nodes
        return (prefill, decode) if prefill else (decode,)


class Instances:
    """The pins of one gateway process, in the order in which they were made.

    Invariant: every instance's nodes have been listed by the router within `GRACE_SECONDS` of the router's last answer.

    Args:
        clock: Seconds, monotonic.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._instances: dict[str, Instance] = {}
        self._absent_since: dict[str, float] = {}

    def add(self, instance: Instance) -> None:
        """Pin; an instance of the same id is replaced.

        Raises:
            OverloadedError: If there are too many.
        """
        if instance.instance_id not in self._instances and len(self._instances) >= MAX_INSTANCES:
            raise OverloadedError(f"there are {MAX_INSTANCES} instances already: delete one first")
        self._instances[instance.instance_id] = instance
        self._absent_since.pop(instance.instance_id, None)

    def remove(self, instance_id: str) -> bool:
        """Lift a pin; return whether there was one."""
        self._absent_since.pop(instance_id, None)
        return self._instances.pop(instance_id, None) is not None

    def get(self, instance_id: str) -> Instance | None:
        """Return an instance, or None."""
        return self._instances.get(instance_id)

    def all(self) -> list[Instance]:
        """Return every instance."""
        return list(self._instances.values())

    def pins(self, model: str) -> tuple[NodePair, ...]:
        """Return the only places for benchmarks of a model; empty: any."""
        return tuple(instance.nodes for instance in self._instances.values() if instance.model == model)

    def note_nodes(self, node_ids: Collection[str]) -> None:
        """Take the nodes that the router lists now; drop instances whose nodes have been away for too long."""
        now = self._clock()
        for instance in self.all():
            if all(node_id in node_ids for node_id in instance.node_ids):
                self._absent_since.pop(instance.instance_id, None)
            elif now - self._absent_since.setdefault(instance.instance_id, now) >= GRACE_SECONDS:
                self.remove(instance.instance_id)
