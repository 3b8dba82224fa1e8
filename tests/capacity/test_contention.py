"""Streams that share what carries them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from baton.capacity.kv_transfer import FramePlan, Stream, slowdown
from baton.capacity.snapshot import Link
from baton.capacity.stream_sharing import StreamWindow, link_rates
from capacity.samples import node

RATE = 1e9


def stream(ready: float, later: float = 0.0, begin: float = 0.0, end: float = 0.0) -> Stream:
    """Return a stream of so many bytes that are computed, or will be."""
    return Stream(ready, later, begin, end, "p", "d")


def test_a_stream_alone_takes_what_it_takes() -> None:
    """Also beside one that has nothing to send any more."""
    assert slowdown(1e9, RATE, 0.0, 0.5, []) == 1.0
    assert slowdown(1e9, RATE, 0.0, 0.5, [stream(0.0)]) == 1.0


def test_two_streams_that_are_there_take_twice_as_long() -> None:
    """A longer one is not waited for to its end; of a shorter one all is."""
    assert slowdown(1e9, RATE, 0.0, 0.0, [stream(1e9)]) == pytest.approx(2.0)
    assert slowdown(1e9, RATE, 0.0, 0.0, [stream(9e9)]) == pytest.approx(2.0)
    assert slowdown(1e9, RATE, 0.0, 0.0, [stream(5e8)]) == pytest.approx(1.5)


def test_what_is_sent_by_then_is_not_met() -> None:
    """One second of waiting is one second of sending."""
    assert slowdown(1e9, RATE, 1.0, 0.0, [stream(1e9)]) == 1.0
    assert slowdown(1e9, RATE, 0.5, 0.0, [stream(1e9)]) == pytest.approx(1.5)


def test_what_is_computed_afterwards_is_not_met() -> None:
    """A stream that begins after this one has ended does not slow it."""
    assert slowdown(1e9, RATE, 0.0, 0.0, [stream(0.0, 1e9, 5.0, 6.0)]) == 1.0


def test_a_stream_that_is_computed_slowly_leaves_room() -> None:
    """At a tenth of the rate it meets a ninth of the other."""
    assert slowdown(1e8, RATE, 0.0, 1.0, [stream(9e7)]) == pytest.approx(1.1)


def test_frames_that_wait_for_the_computation_cost_their_own_time_each() -> None:
    """32 frames of 50 MB at 1 GB/s, and 3 ms each to be sent and received: 146 ms beside 200 ms of computation.

    Where the computation is shorter they run beside each other, and no more than the 50 ms and one frame is needed.
    """
    plan = FramePlan(1, 0, compute_seconds=0.2, exposed_seconds=0.0, num_frames=32)

    assert plan.busy_seconds(0.05, 0.003) == pytest.approx(0.05 + 32 * 0.003)
    assert plan._replace(compute_seconds=0.01).busy_seconds(0.05, 0.003) == pytest.approx(0.05 + 0.05 / 32 + 0.003)


def test_what_is_ahead_is_waited_for_to_its_end() -> None:
    """A longer one, too; what other links carry meanwhile is met as well, as much as goes before and is sent."""
    assert slowdown(1e9, RATE, 0.0, 0.0, [], [stream(9e9)]) == pytest.approx(10.0)
    assert slowdown(1e9, RATE, 2.0, 0.0, [], [stream(3e9)]) == pytest.approx(2.0)
    assert slowdown(1e8, RATE, 0.0, 1.0, [], [stream(9e7)]) == pytest.approx(1.9)
    other = Stream(9e9, 0.0, 0.0, 0.0, "p", "e")
    assert slowdown(1e9, RATE, 0.0, 0.0, [other, other], [stream(1e9)]) == pytest.approx(4.0)


def test_other_links_on_a_card_take_half_of_it_at_most() -> None:
    """The streams of the link itself are no part of what it needs for another one."""
    window = StreamWindow(10**9, 0.0, 0.0)
    idle, receiver = (replace(node(name, "decode", "m3-ultra"), send_bytes_per_second=RATE) for name in "pd")
    others = [Stream(1e9, 0.0, 0.0, 0.0, "p", "e")] * 3
    senders = [idle, *(replace(idle, sending=tuple(sending)) for sending in ([stream(1e9)], others[:1], others))]

    rates = [link_rates(sender, receiver, Link(RATE, 0.0), window).together for sender in senders]

    assert rates == pytest.approx([RATE, RATE, RATE / 2, RATE / 2])


def test_a_card_carries_what_its_link_has_been_seen_to() -> None:
    """It was measured once, on a busy host, at a tenth of the rate that the link has shown since."""
    slow = {"send_bytes_per_second": RATE / 10, "receive_bytes_per_second": RATE / 10}
    other = Stream(1e9, 0.0, 0.0, 0.0, "p", "e")
    sender = replace(node("p", "decode", "m3-ultra"), sending=(other,), **slow)
    receiver = replace(node("d", "decode", "m3-ultra"), **slow)

    rates = link_rates(sender, receiver, Link(RATE, 0.0), StreamWindow(10**9, 0.0, 0.0))

    assert rates == pytest.approx((RATE / 2, RATE / 2))


def test_a_receiver_takes_the_earliest_streams_first() -> None:
    """All that comes to it goes ahead, of other senders too; what those send no stream of this link gets."""
    sender = replace(node("p", "decode", "m3-ultra"), sending=(stream(1e9),))
    coming = (stream(1e9), Stream(2e9, 0.0, 0.0, 0.0, "q", "d"))
    receiver = replace(node("d", "decode", "m3-ultra"), receiving=coming, receive_bytes_per_second=RATE)

    rates = link_rates(sender, receiver, Link(RATE, 0.0), StreamWindow(10**9, 0.0, 0.0))

    assert rates == pytest.approx((RATE / 4, RATE / 3))


def test_an_earlier_stream_over_a_slow_link_leaves_most_of_the_receivers_card() -> None:
    """However long it is: it takes a tenth, and what it brings meanwhile."""
    sender = node("p", "decode", "m3-ultra")
    slow = Stream(1e12, 0.0, 0.0, 0.0, "q", "d", link_bytes_per_second=RATE / 10)
    receiver = replace(node("d", "decode", "m3-ultra"), receiving=(slow,), receive_bytes_per_second=RATE)

    rates = link_rates(sender, receiver, Link(RATE, 0.0), StreamWindow(10**9, 0.0, 0.0))

    assert rates == pytest.approx((0.9 * RATE,) * 2, rel=0.02)
