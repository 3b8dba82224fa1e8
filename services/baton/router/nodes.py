"""The nodes that are registered now, and how fresh what is known of them is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from baton.capacity.snapshot import NodeLoad
from baton.errors import SupersededError
from baton.router.records import LinkMeasurement, LoadReport, NodeDescription


@dataclass(slots=True)
class Node:
    """A registered node. Mutable; owned by `NodeTable`."""

    description: NodeDescription
    """As registered."""
    reported_at_seconds: float
    """When it last reported (or registered)."""
    progressed_at_seconds: float
    """When its step count last moved, or it last had no work."""
    report: LoadReport | None = None
    """Its last report; None: none yet, taken as idle."""
    links: dict[str, LinkMeasurement] = field(default_factory=dict)
    """Links into it, by sending node."""

    @property
    def max_batch_size(self) -> int:
        """Return how many requests it decodes together at most: as it registered, or one while its memory is short."""
        is_sparing = self.report is not None and self.report.is_sparing_memory
        return 1 if is_sparing else self.description.max_batch_size

    @property
    def load(self) -> NodeLoad:
        """Return its work as last reported; an idle node with a free pool before the first report."""
        if self.report is None:
            return NodeLoad(num_free_blocks=self.description.num_blocks)
        return NodeLoad(
            num_waiting=self.report.num_waiting,
            num_running=self.report.num_running,
            num_pending_prompt_tokens=self.report.num_pending_prompt_tokens,
            num_free_blocks=self.report.num_free_blocks,
            mean_context_tokens=self.report.mean_context_tokens,
        )


class NodeTable:
    """Nodes by id.

    Invariant, kept by `register` and `remove`: an entry belongs to the registration that came last among those with
    the greatest epoch; `remove` by an earlier registration leaves it alone.
    """

    def __init__(self, clock: Callable[[], float], *, stuck_seconds: float, silent_seconds: float) -> None:
        self._clock = clock
        self._stuck_seconds = stuck_seconds
        self._silent_seconds = silent_seconds
        self._nodes: dict[str, Node] = {}

    def __iter__(self) -> Iterator[Node]:
        return iter(sorted(self._nodes.values(), key=lambda node: node.description.node_id))

    def get(self, node_id: str) -> Node | None:
        """Return a node, or None."""
        return self._nodes.get(node_id)

    def of_model(self, model_id: str) -> list[Node]:
        """Return the nodes of a model, sorted by id."""
        return [node for node in self if node.description.model_id == model_id]

    def register(self, description: NodeDescription) -> Node:
        """Add a node, in place of an entry with the same id and no greater epoch.

        Raises:
            SupersededError: If a process with a greater epoch is registered under this id.
        """
        known = self._nodes.get(description.node_id)
        if known and known.description.epoch > description.epoch:
            raise SupersededError(
                f"node {description.node_id}: epoch {known.description.epoch} is registered, got {description.epoch}"
            )
        now = self._clock()
        node = Node(description, reported_at_seconds=now, progressed_at_seconds=now)
        self._nodes[description.node_id] = node
        return node

    def remove(self, node: Node) -> bool:
        """Drop a node, unless a later registration has replaced it; return whether it was dropped."""
        if self._nodes.get(node.description.node_id) is not node:
            return False
        del self._nodes[node.description.node_id]
        return True

    def report(self, node: Node, report: LoadReport) -> None:
        """Take a load report."""
        now = self._clock()
        had_work = node.report is not None and node.report.has_work
        if not (had_work and report.has_work) or node.report is None or report.step_count != node.report.step_count:
            node.progressed_at_seconds = now
        node.report = report
        node.reported_at_seconds = now

    def unusable_reason(self, node: Node) -> str:
        """Return why a node takes no requests now; empty if it does."""
        now = self._clock()
        if node.report and node.report.is_draining:
            return "draining"
        silent_seconds = now - node.reported_at_seconds
        if silent_seconds > self._silent_seconds:
            return f"no report for {silent_seconds:.1f} s"
        stuck_seconds = now - node.progressed_at_seconds
        if node.report and node.report.has_work and stuck_seconds > self._stuck_seconds:
            return f"stuck: no engine step for {stuck_seconds:.1f} s"
        return ""
