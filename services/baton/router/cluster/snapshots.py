"""What placement sees of each node and of the ways between them.

Of a node it is worked out when something about the node changes, and brought up to date when used; a way is worked out
when it is asked for and kept until something about it changes.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import NamedTuple

from baton.capacity.cost import FRAME_OVERHEAD_SECONDS, NodeProfile, PromptQueue, QueuedWork
from baton.capacity.kv_transfer import WireAbility, WireOption, WirePolicy
from baton.capacity.snapshot import Link, NodeSnapshot, TermSpread, TierRates
from baton.kv.hashing import Adapter
from baton.kv.kv_format import KvLayout
from baton.router.calibration import Calibration
from baton.router.cluster.streams import MOVE_SECONDS, StreamsInFlight
from baton.router.in_flight import NO_RATES, PlacementLedger, RecentWork
from baton.router.kv_compatibility import mismatch, wire_options
from baton.router.nodes import Node, NodeDescription, NodeTable

RENEWAL_SECONDS = 1.0
"""Age at which what has been worked out with a correction is worked out again: corrections fade."""

LinkKey = tuple[str, str]
"""(sending node id, receiving node id)."""


@dataclass(frozen=True, slots=True)
class NodeKnowledge:
    """What snapshots are made of, beside what nodes say of themselves."""

    prefill_calibration: Calibration[str]
    decode_calibration: Calibration[str]
    queue_calibration: Calibration[str]
    card_calibration: Calibration[str]
    placed: PlacementLedger
    """Work that reports do not cover yet."""
    streams: StreamsInFlight
    """KV on its way."""
    recent: dict[str, RecentWork]
    """What was placed of late, by decode node."""


class NodeSnapshots:
    """Snapshots of nodes.

    A snapshot is kept for at most `RENEWAL_SECONDS`, because corrections fade, and until `changed` is called of its
    node. Of what is kept only the queue is of a moment, and streams are left out: `current` tells both as they are now.
    """

    def __init__(self, clock: Callable[[], float], nodes: NodeTable, known: NodeKnowledge) -> None:
        self._clock = clock
        self._nodes = nodes
        self._known = known
        self._of_model: dict[str, tuple[NodeSnapshot, ...]] = {}

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
        now, has_streams = self._clock(), self._known.streams.has_any(kept.node_id)
        if not has_streams and (now - kept.at_seconds < MOVE_SECONDS or not kept.queue.seconds):
            return kept
        node = self._nodes.get(kept.node_id)
        if node is None:
            return kept
        if kept is node.snapshot and node.current is not None and now - node.current.at_seconds < MOVE_SECONDS:
            return node.current
        values = list(_values_of(kept))  # `replace` takes twice as long
        values[_AT] = now
        if kept.queue.seconds:
            values[_QUEUE] = _queue_of(node.queued_work, now)
        if has_streams:
            values[_SENDING], values[_RECEIVING] = self._known.streams.of_node(kept.node_id)
        current = NodeSnapshot(*values)
        if kept is node.snapshot:
            node.current = current
        return current

    def changed(self, *node_ids: str) -> None:
        """Work snapshots out again when they are wanted."""
        for node_id in node_ids:
            node = self._nodes.get(node_id)
            if node is not None:
                node.snapshot = None
                for each in self._nodes.beside(node):
                    each.snapshot = None

    def card_rates(self, sender_id: str, receiver_id: str) -> tuple[float, float]:
        """Return the rates of the network cards of one that sends and one that receives, bytes/s; 0: not known."""
        receiver = self._nodes.get(receiver_id)
        sending = self._nodes.send_bytes_per_second(sender_id) / self._known.card_calibration.factor(sender_id)
        return sending, receiver.receive_bytes_per_second if receiver else 0.0

    def _profile(self, node: Node) -> NodeProfile:
        node_id = node.description.node_id
        share = 1.0 + sum(each.load.num_decoding > 0 for each in self._nodes.beside(node))  # they take turns
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
                each.load_at_seconds,
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
        send_rate, receive_rate = self.card_rates(node_id, node_id)
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
            arrivals_per_second=rates.arrivals_per_second,
            arrival_seconds=rates.arrival_seconds,
            prompts_per_second=rates.prompts_per_second,
            prompt_share=rates.prompt_share,
            send_bytes_per_second=send_rate,
            receive_bytes_per_second=receive_rate,
            spread=TermSpread(
                known.queue_calibration.spread(node_id),
                known.prefill_calibration.spread(node_id),
                known.decode_calibration.spread(node_id),
            ),
            last_used=node.last_used,
            at_seconds=now_seconds,
        )
        node.current = None
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
        if node is None or not (reason := node.description.lack_of(adapter)):
            return kept
        before = node.lacking.get(adapter)
        if before is None or before[0] is not kept:
            before = node.lacking[adapter] = kept, replace(kept, unusable_reason=kept.unusable_reason or reason)
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


def frame_seconds(round_trip_seconds: float) -> float:
    """Return what a frame is taken to need besides its bytes before there are outcomes: half of an empty call."""
    return max(FRAME_OVERHEAD_SECONDS, round_trip_seconds / 2)


class _Kept(NamedTuple):
    """A link, as it was worked out."""

    link: Link
    expires_at_seconds: float
    """When its correction has faded; infinity: it has none."""


class _Exchange(NamedTuple):
    """How nodes of two kinds can exchange KV."""

    mismatch: str
    """Why they cannot; empty if they can."""
    wires: tuple[WireOption, ...]


class LinkTable(Mapping[LinkKey, Link]):
    """Links by pair, as `ClusterSnapshot.links` wants them: of nodes x nodes only those are made that are asked for.

    Invariant, kept by `forget` and `nodes_changed`: what is kept belongs to the nodes that are registered.
    """

    def __init__(
        self,
        clock: Callable[[], float],
        nodes: NodeTable,
        calibration: Calibration[LinkKey],
        frame_calibration: Calibration[LinkKey],
        *,
        default_link: Link,
        wire_policy: WirePolicy,
    ) -> None:
        self._clock, self._nodes = clock, nodes
        self._calibration, self._frame_calibration = calibration, frame_calibration
        self._default_link, self._wire_policy = default_link, wire_policy
        self._kept: dict[LinkKey, _Kept] = {}
        self._kinds: dict[tuple[KvLayout, tuple[WireAbility, ...]], int] = {}
        self._kind_of: dict[str, int] = {}
        self._exchanges: dict[tuple[int, int], _Exchange] = {}

    def __getitem__(self, pair: LinkKey) -> Link:
        link = self.get(pair)
        if link is None:
            raise KeyError(pair)
        return link

    def __iter__(self) -> Iterator[LinkKey]:
        ids = [node.description.node_id for node in self._nodes]
        return ((sender, receiver) for sender in ids for receiver in ids if sender != receiver)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def get(self, pair: LinkKey, default: Link | None = None) -> Link | None:  # type: ignore[override]
        """Return the link of a pair, or the default where one of them is not registered."""
        kept = self._kept.get(pair)
        if kept is not None and (kept.expires_at_seconds == math.inf or self._clock() < kept.expires_at_seconds):
            return kept.link
        sender, receiver = map(self._nodes.get, pair)
        return default if sender is None or receiver is None else self.link(sender, receiver)

    def link(self, sender: Node, receiver: Node) -> Link:
        """Return the way from one node to another, corrected, with the reason if they cannot exchange KV."""
        pair = (sender.description.node_id, receiver.description.node_id)
        probe = receiver.links.get(pair[0])
        measured = probe or self._default_link
        has_learnt = self._calibration.has_learnt(pair) or self._frame_calibration.has_learnt(pair)
        exchange = self._exchange(sender.description, receiver.description)
        link = Link(
            bytes_per_second=measured.bytes_per_second / self._calibration.factor(pair),
            round_trip_seconds=measured.round_trip_seconds,
            is_measured=probe is not None or self._calibration.has_learnt(pair),
            mismatch=exchange.mismatch,
            has_unlike_caches=sender.description.layout.dtype is not receiver.description.layout.dtype,
            wires=exchange.wires,
            frame_seconds=max(
                FRAME_OVERHEAD_SECONDS,
                frame_seconds(measured.round_trip_seconds) * self._frame_calibration.factor(pair),
            ),
            spread=self._calibration.spread(pair),
        )
        self._kept[pair] = _Kept(link, self._clock() + RENEWAL_SECONDS if has_learnt else math.inf)
        return link

    def forget(self, pair: LinkKey) -> None:
        """Work a link out again: its correction has changed, or it was measured."""
        self._kept.pop(pair, None)

    def nodes_changed(self) -> None:
        """Work all links out again: a node has gone, or has come and may be another under a known name."""
        self._kept.clear()
        self._kinds.clear()
        self._kind_of.clear()
        self._exchanges.clear()

    def _exchange(self, sender: NodeDescription, receiver: NodeDescription) -> _Exchange:
        """Return how two nodes can exchange KV. Kept by kinds of nodes until any node registers: layouts are long."""
        kinds = (self._kind(sender), self._kind(receiver))
        exchange = self._exchanges.get(kinds)
        if exchange is None:
            reason = mismatch(sender, receiver, self._wire_policy)
            exchange = self._exchanges[kinds] = _Exchange(reason, wire_options(sender, receiver))
        return exchange

    def _kind(self, node: NodeDescription) -> int:
        """Return a number that nodes share whose caches and formats are equal."""
        kind = self._kind_of.get(node.node_id)
        if kind is None:
            kind = self._kinds.setdefault((node.layout, node.wire_abilities), len(self._kinds))
            self._kind_of[node.node_id] = kind
        return kind
