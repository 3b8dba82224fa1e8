"""What placement sees of each node: worked out when something about the node changes, brought up to date when used."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace

from baton.capacity.cost import NodeProfile
from baton.capacity.prompt_queue import PromptQueue, QueuedWork
from baton.capacity.snapshot import NodeSnapshot, TermSpread, TierRates
from baton.kv.adapter import Adapter
from baton.router.calibration import Calibration
from baton.router.cluster.links import RENEWAL_SECONDS
from baton.router.cluster.streams import MOVE_SECONDS, StreamsInFlight
from baton.router.in_flight import NO_RATES, PlacementLedger, RecentWork
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
        values = list(_values_of(kept))  # `replace` takes twice as long
        values[_QUEUE], values[_SENDING], values[_RECEIVING], values[_AT] = (
            _queue_of(node.queued_work, now),
            sending,
            receiving,
            now,
        )
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

    def _queued_work(self, node: Node, profile: NodeProfile) -> tuple[QueuedWork, ...]:
        """Return what a node, and each that shares its device, has to compute; of those that share one, who has any."""
        sharers = [node, *self._nodes.beside(node)]
        if len(sharers) > 1:
            sharers = [each for each in sharers if self._known.placed.has_prompts(each.description.node_id, each.load)]
        return tuple(
            self._known.placed.queued_work(
                each.description.node_id,
                each.load,
                each.reported_at_seconds,
                each.description.shape,
                profile if each is node else self._profile(each),
                each.description.max_step_tokens,
            )
            for each in sharers
        )

    def _renew(self, node: Node, now_seconds: float) -> NodeSnapshot:
        description, known, report = node.description, self._known, node.report
        node_id, profile = description.node_id, self._profile(node)
        recent = known.recent.get(node_id)
        rates = recent.rates() if recent else NO_RATES
        sending, receiving = known.streams.of_node(node_id)
        node.queued_work = self._queued_work(node, profile)
        node.snapshot = NodeSnapshot(
            node_id=node_id,
            role=description.role,
            shape=description.shape,
            profile=profile,
            num_blocks=description.num_blocks,
            block_tokens=description.block_tokens,
            max_batch_size=node.max_batch_size,
            load=known.placed.added_to(node_id, node.load),
            unusable_reason=self._nodes.unusable_reason(node),
            max_step_tokens=description.max_step_tokens,
            serves_blocks=description.serves_blocks,
            tier_rates=report.tier_rates if report else TierRates(),
            device_id=description.device_id,
            queue=_queue_of(node.queued_work, now_seconds),
            queue_factor=known.queue_calibration.factor(node_id),
            arrivals_per_second=rates.arrivals_per_second,
            arrival_seconds=rates.arrival_seconds,
            prompts_per_second=rates.prompts_per_second,
            prompt_share=rates.prompt_share,
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
        node.snapshot_until_seconds = min(
            now_seconds + RENEWAL_SECONDS,
            self._nodes.usable_until_seconds(node),
            known.placed.expires_at_seconds(node_id),
            *[known.placed.expires_at_seconds(each.description.node_id) for each in self._nodes.beside(node)],
        )
        return node.snapshot

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


def _queue_of(works: Sequence[QueuedWork], now_seconds: float) -> PromptQueue:
    """Return the prompts that a device has still to compute: nodes that share it take turns."""
    if len(works) == 1:
        return works[0].at(now_seconds)
    queues = [work.at(now_seconds, 1 / len(works)) for work in works]
    pass_seconds = max((queue.pass_seconds for queue in queues), default=0.0)
    return PromptQueue.of([seconds for queue in queues for seconds in queue.seconds], pass_seconds)


_FIELDS = tuple(field.name for field in fields(NodeSnapshot))
_values_of = operator.attrgetter(*_FIELDS)
_QUEUE, _SENDING, _RECEIVING, _AT = map(_FIELDS.index, ("queue", "sending", "receiving", "at_seconds"))
