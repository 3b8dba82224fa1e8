"""The ways between registered nodes, worked out when they are asked for and kept until something about them changes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from baton.capacity.kv_transfer import WireAbility, WireOption, WirePolicy
from baton.capacity.snapshot import Link
from baton.kv.kv_format import KvLayout
from baton.router.calibration import Calibration
from baton.router.kv_compatibility import mismatch, wire_options
from baton.router.nodes import Node, NodeDescription, NodeTable

RENEWAL_SECONDS = 1.0
"""Age at which what has been worked out with a correction is worked out again: corrections fade."""

LinkKey = tuple[str, str]
"""(sending node id, receiving node id)."""


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
    """In what formats."""


class LinkTable(Mapping[LinkKey, Link]):
    """Links by pair, as `ClusterSnapshot.links` wants them: of nodes x nodes only those are made that are asked for.

    Invariant, kept by `forget` and `nodes_changed`: what is kept belongs to the nodes that are registered.
    """

    def __init__(
        self,
        clock: Callable[[], float],
        nodes: NodeTable,
        calibration: Calibration[LinkKey],
        *,
        default_link: Link,
        wire_policy: WirePolicy,
    ) -> None:
        self._clock = clock
        self._nodes = nodes
        self._calibration = calibration
        self._default_link = default_link
        self._wire_policy = wire_policy
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
        has_learnt = self._calibration.has_learnt(pair)
        exchange = self._exchange(sender.description, receiver.description)
        link = Link(
            bytes_per_second=measured.bytes_per_second / self._calibration.factor(pair),
            round_trip_seconds=measured.round_trip_seconds,
            is_measured=probe is not None or has_learnt,
            mismatch=exchange.mismatch,
            has_unlike_caches=sender.description.layout.dtype is not receiver.description.layout.dtype,
            wires=exchange.wires,
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
