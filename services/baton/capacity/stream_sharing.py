"""What other streams leave one of its link and of both network cards. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from baton.capacity.kv_transfer import Stream, parted, slowdown
from baton.capacity.snapshot import Link, NodeSnapshot


class StreamWindow(NamedTuple):
    """A stream that would be sent."""

    num_bytes: int
    begin_seconds: float
    """When its first byte is ready, from now on."""
    compute_seconds: float
    """Time over which its bytes become ready."""


class LinkRates(NamedTuple):
    """What other streams leave of a link."""

    shared: float
    """For one stream, beside what else is on the link and on both network cards by then, bytes/s."""
    together: float
    """For all streams of the link together, beside those of other links on both network cards."""


def link_rates(sender: NodeSnapshot, receiver: NodeSnapshot, link: Link, window: StreamWindow) -> LinkRates:
    """Return what other streams leave of a link: earlier ones go first, and links share their sender's card evenly.

    Those come and go, and so count as one for `together`; a receiver takes the earliest streams first, whoever sends
    them. Cards are measured once, links by every stream: a card carries at least what the link has been seen to.
    """
    rate, sending, receiving = link.bytes_per_second, sender.sending, receiver.receiving
    if not (sending or receiving):
        return LinkRates(rate, rate)
    of_link, beside = parted(sending, receiver.node_id)
    _, arriving = parted(receiving, sender.node_id)

    send_rate, receive_rate = sender.send_bytes_per_second, receiver.receive_bytes_per_second
    send_card = max(send_rate, rate) if beside and send_rate else 0.0
    receive_card = max(receive_rate, rate) if arriving and receive_rate else 0.0
    num_bytes, begin, computing = window

    def left(rate: float, beside: Sequence[Stream], ahead: Sequence[Stream], *, is_card: bool = False) -> float:
        return rate / slowdown(num_bytes, rate, begin, computing, beside, ahead, is_card=is_card) if rate else math.inf

    by_sender, by_receiver = left(send_card, beside, of_link), left(receive_card, (), receiving, is_card=True)
    shared = min(left(rate, (), of_link), by_sender, by_receiver)
    if of_link:  # else all that goes ahead is of other links
        by_sender, by_receiver = left(send_card, beside, ()), left(receive_card, (), arriving, is_card=True)
    return LinkRates(shared, min(max(min(rate, by_sender), rate / 2), by_receiver))
