"""How far streams have come."""

from __future__ import annotations

import pytest

from baton.router.cluster.streams import StreamPath, StreamsInFlight
from router.samples import Clock

PATH = StreamPath("dgx", "mac", 1e9)


def test_a_stream_is_sent_as_it_is_computed() -> None:
    """No faster than the prompt, no faster than the link."""
    clock = Clock()
    streams = StreamsInFlight(clock)
    streams.add("p", PATH, 2_000_000_000, compute_seconds=1.0)

    clock.seconds += 0.5
    ((half,), _) = streams.of_node("dgx")
    clock.seconds += 1.0
    (_, (rest,)) = streams.of_node("mac")
    clock.seconds += 0.6

    assert (half.num_ready_bytes, half.num_later_bytes, half.end_seconds) == pytest.approx((5e8, 1e9, 0.5))
    assert (rest.num_ready_bytes, rest.num_later_bytes) == pytest.approx((5e8, 0.0))
    assert streams.of_node("dgx")[0] == ()


def test_streams_of_one_link_are_computed_and_sent_in_turn() -> None:
    """The second is computed after the first; a report says what is true instead."""
    clock = Clock()
    streams = StreamsInFlight(clock)
    for name in "pq":
        streams.add(name, PATH, 1_000_000_000, compute_seconds=1.0)
    windows = [(stream.begin_seconds, stream.end_seconds) for stream in streams.of_node("dgx")[0]]
    streams.computing("p", 1.0)
    streams.computing("q", 1.0)
    clock.seconds += 1.0

    assert windows == [(0.0, 1.0), (1.0, 2.0)]
    assert [stream.num_ready_bytes for stream in streams.of_node("dgx")[0]] == pytest.approx([1e9])


def test_a_stream_ends_with_its_request_or_its_node() -> None:
    """Whatever was left of it."""
    streams = StreamsInFlight(Clock())
    for name in "pq":
        streams.add(name, PATH, 1_000, compute_seconds=1.0)

    streams.end("p")
    assert len(streams.of_node("dgx")[0]) == 1
    streams.forget("mac")
    assert streams.of_node("dgx")[0] == ()


def test_links_share_a_card_and_it_is_known_what_that_did() -> None:
    """2.5 GB over a card of 1 GB/s: half for each link that is busy; earlier streams are no part."""
    clock = Clock()
    streams = StreamsInFlight(clock)
    path = PATH._replace(send_bytes_per_second=1e9)
    for name, receiver_id in (("p", "mac"), ("q", "mac"), ("other", "mini")):
        num_bytes = 1_500_000_000 if name == "other" else 500_000_000
        streams.add(name, path._replace(receiver_id=receiver_id), num_bytes, compute_seconds=0.0)
    for _ in range(25):
        clock.seconds += 0.1
        left = [(each.receiver_id, each.num_ready_bytes) for each in streams.of_node("dgx")[0]]
        if round(clock.seconds, 1) == 1.0:
            assert left == pytest.approx([("mac", 5e8), ("mini", 1e9)])

    assert left == []
    held_up = [streams.held_up(name) for name in ("p", "q", "other")]
    assert held_up == [(1e9, pytest.approx(seconds), True) for seconds in (1.0, 1.0, 2.5)]
    assert streams.held_up("p") is None


def test_a_receiver_takes_the_earliest_stream_first() -> None:
    """Of another sender, too: the later one is held up by its card, for as long as that one comes and it itself."""
    clock = Clock()
    streams = StreamsInFlight(clock)
    path = PATH._replace(receive_bytes_per_second=1e9)
    for sender_id in ("dgx", "spark"):
        streams.add(sender_id, path._replace(sender_id=sender_id), 500_000_000, compute_seconds=0.0)
    left = []
    for _ in range(10):
        clock.seconds += 0.1
        left.append([each.num_ready_bytes for each in streams.of_node("mac")[1]])

    assert left[3:5] == [pytest.approx([1e8, 5e8]), pytest.approx([5e8])]
    assert left[-1] == []
    assert streams.held_up("dgx") == (0.0, pytest.approx(0.5), False)
    assert streams.held_up("spark") == (0.0, pytest.approx(1.0), True)


def test_a_stream_that_others_do_not_slow_is_not_held_up() -> None:
    """Alone; after an earlier one of its link; where its computation leaves the other links what they can send."""
    clock = Clock()
    streams = StreamsInFlight(clock)
    path = PATH._replace(send_bytes_per_second=2e9)
    streams.add("alone", path, 1_000_000, compute_seconds=0.0)
    clock.seconds += 1.0
    for name in "pq":
        streams.add(name, path, 100_000_000, compute_seconds=0.0)
    clock.seconds += 0.2  # to the last byte
    assert streams.of_node("dgx") == ((), ())
    path = PATH._replace(receive_bytes_per_second=2e9)
    streams.add("slow", path, 100_000_000, compute_seconds=1.0)
    streams.add("spark", path._replace(sender_id="spark"), 100_000_000, compute_seconds=2.0)
    for _ in range(31):
        clock.seconds += 0.1
        streams.of_node("dgx")

    assert streams.of_node("dgx") == ((), ())
    assert [streams.held_up(name) for name in ("alone", "p", "q")] == [None] * 3
    assert streams.held_up("slow") == (0.0, pytest.approx(0.1), False)


def test_a_stream_beside_others_on_a_wide_card_is_not_bound_by_that() -> None:
    """Were it slower than its link, the card would be less wide than it is taken for."""
    clock = Clock()
    streams = StreamsInFlight(clock)
    path = PATH._replace(send_bytes_per_second=2e9)
    for receiver_id in ("mac", "mini"):
        streams.add(receiver_id, path._replace(receiver_id=receiver_id), 500_000_000, compute_seconds=0.0)
    clock.seconds += 0.2
    streams.of_node("dgx")
    clock.seconds += 0.4
    streams.end("mac")

    assert streams.held_up("mac") == (2e9, pytest.approx(0.5), False)


def test_a_card_that_was_measured_slow_does_not_hold_up_what_its_link_carries() -> None:
    """A link's rate is learnt from every stream, its cards' are not."""
    clock = Clock()
    streams = StreamsInFlight(clock)
    streams.add("p", PATH._replace(send_bytes_per_second=1e8, receive_bytes_per_second=1e8), 10**9, compute_seconds=0.0)

    clock.seconds += 1.1

    assert streams.of_node("dgx") == ((), ())
