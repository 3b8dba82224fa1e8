"""KV streams that placements have caused, and how far each has come by now."""

from __future__ import annotations

import math
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from baton.capacity.cost import compute_prompts
from baton.capacity.kv_transfer import Stream

MOVE_SECONDS = 0.01
"""How far streams may lag behind: they are all moved on at once."""

MAX_HELD_UP = 16_384
"""Streams that have ended and are remembered to have been held up; the oldest go first."""


_Resource: TypeAlias = tuple[str, str]
"""A link, by who sends to whom; or the network card of the one or the other alone."""


class StreamPath(NamedTuple):
    """What a stream shares with others."""

    sender_id: str
    receiver_id: str
    link_bytes_per_second: float
    send_bytes_per_second: float = 0.0
    """Rate of the sender's network card; 0: not known."""
    receive_bytes_per_second: float = 0.0
    """Rate of the receiver's; 0: not known."""

    @property
    def link(self) -> _Resource:
        """Return who sends to whom."""
        return self.sender_id, self.receiver_id

    @property
    def sender_card(self) -> _Resource:
        """Return what its sender shares with other links."""
        return self.sender_id, ""

    def rates(self) -> dict[_Resource, float]:
        """Return the rates by resource, those that are known; a card's is the link's at least."""
        link, receiver_card = self.link_bytes_per_second, ("", self.receiver_id)
        cards = {self.sender_card: self.send_bytes_per_second, receiver_card: self.receive_bytes_per_second}
        return {self.link: link} | {card: max(rate, link) for card, rate in cards.items() if rate}


class HeldUp(NamedTuple):
    """What other links did to a stream that met them, as far as the rates are right that were taken for it."""

    bytes_per_second: float
    """Taken for the rate of its sender's card, where the others shared that alone while it could send more; else 0."""
    busy_seconds: float
    """Time that the link needs for the stream beside them."""
    is_bound: bool
    """Whether a card left the link less than that carries."""


@dataclass(slots=True)
class _Flow:
    path: StreamPath
    rates: Mapping[_Resource, float]
    num_bytes: int
    compute_seconds: float
    left_seconds: float
    """Of its computation."""
    num_sent_bytes: float = 0.0
    busy_seconds: float = 0.0
    """Of its link, with what was sent."""
    has_met: bool = False
    """Whether others shared a card with its link."""
    met: set[_Resource] = field(default_factory=set)
    """These cards, while the link could have carried more."""
    is_bound: bool = False
    """As `HeldUp` has it."""

    @property
    def num_computed_bytes(self) -> float:
        if self.left_seconds <= 0:
            return self.num_bytes
        return self.num_bytes * (1 - self.left_seconds / self.compute_seconds)

    @property
    def num_ready_bytes(self) -> float:
        return self.num_computed_bytes - self.num_sent_bytes


class StreamsInFlight:
    """Streams by placement, moved on as their prompts are computed and as links and network cards carry them.

    A node computes prompts one after the other, as far as its reports do not say otherwise. A link carries the earliest
    stream that has something, and so does a receiver's card, as on the fast path; links share their sender's evenly. A
    stream ends when all of it is sent, or its request has ended.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._moved_at_seconds = clock()
        self._flows: dict[str, _Flow] = {}
        self._held_up: OrderedDict[str, HeldUp] = OrderedDict()
        self._of_node: dict[str, dict[str, _Flow]] = {}
        self._sent: dict[str, tuple[Stream, ...]] = {}
        """What each node sends, as it was worked out since streams were moved on or changed."""

    def add(self, placement_id: str, path: StreamPath, num_bytes: int, *, compute_seconds: float) -> None:
        """Count a stream whose prompt takes some time to compute; 0: it is there."""
        self.end(placement_id)
        self._move()
        flow = _Flow(path, path.rates(), num_bytes, compute_seconds, compute_seconds)
        self._flows[placement_id] = flow
        self._sent.pop(path.sender_id, None)
        for node_id in path.link:
            self._of_node.setdefault(node_id, {})[placement_id] = flow

    def computing(self, placement_id: str, share: float) -> None:
        """Note how much of a stream's prompt its node has computed by now, 0 to 1."""
        flow = self._flows.get(placement_id)
        if flow is not None:
            self._move()
            flow.left_seconds = flow.compute_seconds * (1 - share)
            self._sent.pop(flow.path.sender_id, None)

    def held_up(self, placement_id: str) -> HeldUp | None:
        """Return what held up a stream that has ended, once; None: nothing that is known."""
        return self._held_up.pop(placement_id, None)

    def end(self, placement_id: str) -> None:
        """Drop a stream."""
        self._move()
        flow = self._flows.pop(placement_id, None)
        if flow is None:
            return
        self._sent.pop(flow.path.sender_id, None)
        for node_id in flow.path.link:
            self._of_node[node_id].pop(placement_id, None)
        if flow.has_met:
            left_seconds = max(0.0, flow.num_bytes - flow.num_sent_bytes) / flow.path.link_bytes_per_second
            card = flow.path.sender_card
            rate = flow.rates.get(card, 0.0) if flow.met == {card} else 0.0
            self._held_up[placement_id] = HeldUp(rate, flow.busy_seconds + left_seconds, flow.is_bound)
            if len(self._held_up) > MAX_HELD_UP:
                self._held_up.popitem(last=False)

    def forget(self, node_id: str) -> None:
        """Drop the streams from and to a node that is gone."""
        for placement_id in list(self._of_node.get(node_id, ())):
            self.end(placement_id)
        self._of_node.pop(node_id, None)

    def has_any(self, node_id: str) -> bool:
        """Return whether a node sends or receives."""
        return bool(self._of_node.get(node_id))

    def of_node(self, node_id: str) -> tuple[tuple[Stream, ...], tuple[Stream, ...]]:
        """Return what a node sends and what it receives, as far as it is still to be sent."""
        self._move()
        flows = self._of_node.get(node_id)
        if not flows:
            return (), ()
        senders = dict.fromkeys([flow.path.sender_id for flow in flows.values()])
        sending = self._sent_by(node_id) if node_id in senders else ()
        received = (self._sent_by(sender_id) for sender_id in senders if sender_id != node_id)
        return sending, tuple([each for streams in received for each in streams if each.receiver_id == node_id])

    def _sent_by(self, node_id: str) -> tuple[Stream, ...]:
        kept = self._sent.get(node_id)
        if kept is not None:
            return kept
        streams, computed_seconds = list[Stream](), 0.0
        flows = [flow for flow in self._of_node[node_id].values() if flow.path.sender_id == node_id]
        for flow in flows:
            begin_seconds, computed_seconds = computed_seconds, computed_seconds + flow.left_seconds
            num_computed = flow.num_computed_bytes
            streams.append(
                Stream(
                    max(0.0, num_computed - flow.num_sent_bytes),
                    flow.num_bytes - num_computed,
                    begin_seconds,
                    computed_seconds,
                    node_id,
                    flow.path.receiver_id,
                    flow.path.link_bytes_per_second,
                )
            )
        kept = self._sent[node_id] = tuple(streams)
        return kept

    def _move(self) -> None:
        """Compute and send what could be since the last time."""
        now = self._clock()
        elapsed_seconds = now - self._moved_at_seconds
        if elapsed_seconds < MOVE_SECONDS:
            return
        self._moved_at_seconds = now
        if not self._flows:
            return
        self._sent.clear()
        self._compute(elapsed_seconds)
        self._send(elapsed_seconds)
        for placement_id in [name for name, flow in self._flows.items() if flow.num_sent_bytes >= flow.num_bytes - 1]:
            self.end(placement_id)

    def _compute(self, elapsed_seconds: float) -> None:
        """Compute the prompts of each sender as it deals passes out, in order of their placement."""
        of_sender = dict[str, list[_Flow]]()
        for flow in self._flows.values():
            if flow.left_seconds > 0:
                of_sender.setdefault(flow.path.sender_id, []).append(flow)
        for flows in of_sender.values():
            left = [flow.left_seconds for flow in flows]
            compute_prompts(left, elapsed_seconds)
            for flow, left_seconds in zip(flows, left, strict=True):
                flow.left_seconds = left_seconds

    def _send(self, elapsed_seconds: float) -> None:
        """Send the earliest streams first, each link an even part of its sender's card, then what others left over."""
        waiting = ready = [flow for flow in self._flows.values() if flow.num_ready_bytes > 0]
        before = [flow.num_sent_bytes for flow in ready]
        room = {name: rate * elapsed_seconds for flow in ready for name, rate in flow.rates.items()}
        whole, busy = dict(room), set[_Resource]()  # links that could carry no more
        for turn in range(2):
            links = {flow.path.link for flow in waiting}
            num_links = Counter([sender_id for sender_id, _ in links])
            parts = {link: room.get((link[0], ""), math.inf) / num_links[link[0]] for link in links}
            for flow in waiting:
                most = min(parts[flow.path.link], *[room[name] for name in flow.rates])
                num_bytes = min(flow.num_ready_bytes, most)
                if not turn and num_bytes > most - 1:
                    busy.add(flow.path.link)
                flow.num_sent_bytes += num_bytes
                parts[flow.path.link] -= num_bytes
                for name in flow.rates:
                    room[name] -= num_bytes
            waiting = [each for each in waiting if min(each.num_ready_bytes, *[room[name] for name in each.rates]) > 0]
        of_link = dict[_Resource, list[tuple[_Flow, float]]]()
        for flow, was in zip(ready, before, strict=True):
            of_link.setdefault(flow.path.link, []).append((flow, flow.num_sent_bytes - was))
        num_users = Counter([name for (flow, _), *_ in of_link.values() for name in flow.rates])
        for link, flows in of_link.items():
            num_bytes, most = sum([sent for _, sent in flows]), whole[link]
            shared = {name for name in flows[0][0].rates if num_users[name] > 1}
            seconds = elapsed_seconds if link in busy else elapsed_seconds * num_bytes / most
            for flow, sent in flows:
                if sent or (not num_bytes and flow is flows[0][0]):
                    flow.busy_seconds += seconds * sent / num_bytes if num_bytes else seconds
                    flow.has_met |= bool(shared)
                    flow.met |= shared if link in busy else set()
                    flow.is_bound |= link in busy and num_bytes < most - 1
