"""What placement sees of each node: worked out when something about the node changes, brought up to date when used."""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass, fields, replace

from baton.capacity.cost import NodeProfile
from baton.capacity.prompt_queue import PromptQueue
from baton.capacity.snapshot import NodeSnapshot, TermSpread, TierRates
from baton.kv.adapter import Adapter
from baton.router.calibration import Calibration
from baton.router.cluster.links import RENEWAL_SECONDS
from baton.router.cluster.streams import MOVE_SECONDS, StreamsInFlight
from baton.router.in_flight import PlacementLedger, RecentWork
from baton.router.nodes import Node, NodeTable


@dataclass(frozen=True, slots=True)
class NodeKnowledge:
    """What snapshots are made of, beside what nodes say of themselves."""

    prefill_calibration: Calibration[str]
    """Of computing prompts, by node."""
    decode_calibration: Calibration[str]
    """Of decode steps."""
    queue_calibration: Calibration[str]
    """Of waiting."""
    placed: PlacementLedger
    """Work that reports do not cover yet."""
    streams: StreamsInFlight
    """KV on its way."""
    recent: dict[str, RecentWork]
    """What was placed of late, by decode node."""


class NodeSnapshots:
    """Snapshots of nodes.

    A snapshot is kept for at most `RENEWAL_SECONDS`, because corrections fade, and until `changed` is called of its
    node. Of what is kept only queue and streams are of a moment: `current` tells them as they are now.
    """

    def __init__(self, clock: Callable[[], float], nodes: NodeTable, known: NodeKnowledge) -> None:
        self._clock = clock
        self._nodes = nodes
        self._known = known
        self._of_model: dict[str, tuple[NodeSnapshot, ...]] = {}
        self._lacking: dict[tuple[str, Adapter], tuple[NodeSnapshot, NodeSnapshot]] = {}

    def of_model(self, model_id: str, adapter: Adapter | None = None) -> tuple[NodeSnapshot, ...]:
        """Return the nodes of a model as kept: the same objects in the same tuple where nothing has changed."""
        now = self._clock()
        current = tuple(
            [
                node.snapshot
                if node.snapshot is not None and now < node.snapshot_until_seconds
                else self._renew(node, now)
                for node in self._nodes.of_model(model_id)
            ]
        )
        kept = self._of_model.get(model_id, ())
        if len(kept) != len(current) or any(map(operator.is_not, kept, current)):
            self._of_model[model_id] = kept = current
        return kept if adapter is None else tuple(self._with_adapter(each, adapter) for each in kept)

    def current(self, kept: NodeSnapshot) -> NodeSnapshot:
        """Return a node with its queue and its streams of this moment, as exactly as streams are followed."""
        now = self._clock()
        if now - kept.at_seconds < MOVE_SECONDS or not (kept.queue.seconds or kept.sending or kept.receiving):
            return kept
        node = self._nodes.get(kept.node_id)
        if node is None:
            return kept
        sending, receiving = self._known.streams.of_node(kept.node_id)
        queue = self._queue(node, kept.profile)
        values = list(_values_of(kept))  # `replace` takes twice as long
        for name, value in (("queue", queue), ("sending", sending), ("receiving", receiving), ("at_seconds", now)):
            values[_PLACES[name]] = value
        return NodeSnapshot(*values)

    def changed(self, *node_ids: str) -> None:
        """Work snapshots out again when they are wanted."""
        for node_id in node_ids:
            node = self._nodes.get(node_id)
            if node is not None:
                node.snapshot = None
                for each in self._nodes.beside(node):
                    each.snapshot = None

    def device_share(self, node: Node) -> float:
        """Return by what other nodes that decode on a node's device slow it: they take turns."""
        return 1.0 + sum(each.load.num_decoding > 0 for each in self._nodes.beside(node))

    def _profile(self, node: Node) -> NodeProfile:
        node_id, share = node.description.node_id, self.device_share(node)
        return node.description.profile.slowed(
            share * self._known.prefill_calibration.factor(node_id),
            share * self._known.decode_calibration.factor(node_id),
        )

    def _queue(self, node: Node, profile: NodeProfile) -> PromptQueue:
        """Return the prompts that a node's device has still to compute: nodes that share it take turns."""
        sharers = [node, *self._nodes.beside(node)]
        if len(sharers) > 1:
            sharers = [each for each in sharers if self._known.placed.has_prompts(each.description.node_id, each.load)]
        queues = [
            self._own_queue(each, profile if each is node else self._profile(each), 1 / len(sharers))
            for each in sharers
        ]
        if len(queues) == 1:
            return queues[0]
        pass_seconds = max((queue.pass_seconds for queue in queues), default=0.0)
        return PromptQueue.of([seconds for queue in queues for seconds in queue.seconds], pass_seconds)

    def _own_queue(self, node: Node, profile: NodeProfile, pace: float) -> PromptQueue:
        described = node.description
        return self._known.placed.queue(
            described.node_id,
            node.load,
            node.reported_at_seconds,
            described.shape,
            profile,
            described.max_step_tokens,
            pace=pace,
        )

    def _renew(self, node: Node, now_seconds: float) -> NodeSnapshot:
        description, known, report = node.description, self._known, node.report
        node_id, profile = description.node_id, self._profile(node)
        recent = known.recent.get(node_id)
        sending, receiving = known.streams.of_node(node_id)
        snapshot = NodeSnapshot(
            **{name: getattr(description, name) for name in _DESCRIBED},
            profile=profile,
            max_batch_size=node.max_batch_size,
            load=known.placed.added_to(node_id, node.load),
            unusable_reason=self._nodes.unusable_reason(node),
            tier_rates=report.tier_rates if report else TierRates(),
            queue=self._queue(node, profile),
            queue_factor=known.queue_calibration.factor(node_id),
            arrivals_per_second=recent.arrivals_per_second if recent else 0.0,
            arrival_seconds=recent.arrival_seconds if recent else 0.0,
            prompts_per_second=recent.prompts_per_second if recent else 0.0,
            prompt_share=recent.prompt_share if recent else 0.0,
            sending=sending,
            receiving=receiving,
            send_bytes_per_second=self._nodes.send_bytes_per_second(node_id),
            receive_bytes_per_second=node.receive_bytes_per_second,
            spread=TermSpread(
                known.queue_calibration.spread(node_id),
                known.prefill_calibration.spread(node_id),
                known.decode_calibration.spread(node_id),
            ),
            last_used=node.last_used,
            at_seconds=now_seconds,
        )
        node.snapshot = snapshot
        node.snapshot_until_seconds = min(
            now_seconds + RENEWAL_SECONDS,
            self._nodes.usable_until_seconds(node),
            known.placed.expires_at_seconds(node_id),
        )
        return snapshot

    def _with_adapter(self, kept: NodeSnapshot, adapter: Adapter) -> NodeSnapshot:
        """Return a node as requests for an adapter find it."""
        node = self._nodes.get(kept.node_id)
        reason = node.description.lack_of(adapter) if node else ""
        if not reason:
            return kept
        before = self._lacking.get((kept.node_id, adapter))
        if before is None or before[0] is not kept:
            lacking = replace(kept, unusable_reason=kept.unusable_reason or reason)
            before = self._lacking[kept.node_id, adapter] = (kept, lacking)
        return before[1]


_WORKED_OUT = {
    "profile",
    "max_batch_size",
    "load",
    "unusable_reason",
    "tier_rates",
    "queue",
    "queue_factor",
    "arrivals_per_second",
    "arrival_seconds",
    "prompts_per_second",
    "prompt_share",
    "sending",
    "receiving",
    "send_bytes_per_second",
    "receive_bytes_per_second",
    "spread",
    "last_used",
    "at_seconds",
}
_DESCRIBED = tuple(field.name for field in fields(NodeSnapshot) if field.name not in _WORKED_OUT)
"""What a snapshot has of its node's registration."""
_PLACES = {field.name: place for place, field in enumerate(fields(NodeSnapshot))}
"""Where each field is among a snapshot's values."""
_values_of = operator.attrgetter(*_PLACES)
