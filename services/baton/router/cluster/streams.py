"""KV streams that placements have caused, and how far each has come by now."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from baton.capacity.cost import compute_prompts
from baton.capacity.kv_transfer import Stream

MOVE_SECONDS = 0.01
"""How far streams may lag behind: they are all moved on at once."""

MAX_HELD_UP = 16_384
"""Streams that have ended and are remembered to have been held up; the oldest go first."""


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
    def link(self) -> tuple[str, str]:
        """Return who sends to whom."""
        return self.sender_id, self.receiver_id

    def rates(self) -> dict[str, float]:
        """Return the rates by resource, those that are known; a card's is the link's at least."""
        link = self.link_bytes_per_second
        cards = zip(cards_of(*self.link), (self.send_bytes_per_second, self.receive_bytes_per_second), strict=True)
        known = {card: max(rate, link) for card, rate in cards if rate}
        return {f"{self.sender_id}>{self.receiver_id}": link, **known}


def cards_of(sender_id: str, receiver_id: str) -> tuple[str, str]:
    """Return what the card of a node that sends, and that of one that receives, are called."""
    return f"{sender_id}>", f">{receiver_id}"


class HeldUp(NamedTuple):
    """What other links did to a stream that met them, as far as the rates are right that were taken for it."""

    card: str
    """That carried them, too, while it could have sent more (`cards_of`); empty: none did."""
    bytes_per_second: float
    """Taken for the card's rate."""
    busy_seconds: float
    """Time that the link needs for the stream beside them."""
    is_bound: bool
    """Whether the card left the link less than that carries."""


@dataclass(slots=True)
class _Flow:
    path: StreamPath
    rates: Mapping[str, float]
    num_bytes: int
    compute_seconds: float
    left_seconds: float
    """Of its computation."""
    num_sent_bytes: float = 0.0
    busy_seconds: float = 0.0
    """Of its link, with what was sent."""
    card: str | None = None
    """As `HeldUp` has it; None: it met no other link's stream."""
    is_bound: bool = False

    @property
    def num_computed_bytes(self) -> float:
        if self.left_seconds <= 0:
            return self.num_bytes
        return self.num_bytes * (1 - self.left_seconds / self.compute_seconds)

    @property
    def num_ready_bytes(self) -> float:
        return self.num_computed_bytes - self.num_sent_bytes

    def note(self, busy_seconds: float, card: str | None, *, is_bound: bool) -> None:
        """Note for how long the link was busy with it, and beside what; as the fields are."""
        self.busy_seconds += busy_seconds
        self.card = card or (self.card if card is None else self.card or "")
        self.is_bound |= is_bound


class StreamsInFlight:
    """Streams by placement, moved on as their prompts are computed and as links and network cards carry them.

    A node computes prompts one after the other, as far as its reports do not say otherwise. A link carries the earliest
    stream that has something; links share cards evenly. One ends when all of it is sent, or its request has ended.
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
        if flow.card is not None:
            seconds = flow.busy_seconds * flow.num_bytes / flow.num_sent_bytes
            self._held_up[placement_id] = HeldUp(flow.card, flow.rates.get(flow.card, 0.0), seconds, flow.is_bound)
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
        """Send an even part of each link that has something, its earliest stream first, then what others left over."""
        links = dict[tuple[str, str], list[_Flow]]()
        for flow in self._flows.values():
            if flow.num_ready_bytes > 0:
                links.setdefault(flow.path.link, []).append(flow)
        room = {name: rate * elapsed_seconds for flows in links.values() for name, rate in flows[0].rates.items()}
        for turn in range(2):
            num_users = Counter([name for flows in links.values() for name in flows[0].rates])
            parts = {name: room[name] / count for name, count in num_users.items()}
            left = dict[tuple[str, str], list[_Flow]]()
            for link, flows in links.items():
                rates, link_rate = flows[0].rates, flows[0].path.link_bytes_per_second
                num_left = part = min(parts[name] for name in rates)
                is_full = sum(flow.num_ready_bytes for flow in flows) > part
                shared = [name for name in rates if num_users[name] > 1]
                card = min(shared, key=parts.__getitem__) if shared and is_full else "" if shared else None
                rate = part / elapsed_seconds if is_full else link_rate  # who could send more is busy all the time
                for flow in flows:
                    sent = min(num_left, flow.num_ready_bytes)
                    num_left -= sent
                    flow.num_sent_bytes += sent
                    if sent and not turn:
                        flow.note(sent / rate, card, is_bound=rate < link_rate)
                for name in rates:
                    room[name] -= part - num_left
                if is_full and (rest := [flow for flow in flows if flow.num_ready_bytes > 0]):
                    left[link] = rest
            links = left
