"""Flow control on both sides, without a connection."""

from __future__ import annotations

import heapq
import sys
import threading
import time
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from baton.grpc_sockets.flow_control import (
    COMING_SECONDS,
    GROWTH_SECONDS,
    LEAST_WINDOW_BYTES,
    ReceiveTurns,
    ReceiveWindow,
    SendWindows,
    StreamEndedError,
)
from baton.grpc_sockets.frames import LARGEST_WINDOW_BYTES, ErrorCode, ProtocolError


def test_a_sender_gets_the_least_of_both_windows() -> None:
    """What one stream takes, the connection lacks for the others."""
    windows = SendWindows()
    windows.open(1)
    windows.open(3)
    windows.add(1, 100_000)

    assert windows.take(1, 1_000_000) == 65_535
    windows.add(0, 10)
    assert windows.take(3, 4) == 4
    assert windows.take(3, 100) == 6


def test_a_changed_initial_size_changes_open_streams() -> None:
    """By the difference, below 0 too; streams opened later begin with it."""
    windows = SendWindows()
    windows.add(0, 1_000_000)
    windows.open(1)
    windows.take(1, 60_000)
    windows.set_initial(100)

    with pytest.raises(TimeoutError):
        windows.take(1, 1, time.monotonic())
    windows.open(3)
    assert windows.take(3, 1000) == 100
    windows.set_initial(70_000)
    assert windows.take(1, 100_000) == 10_000


def test_who_waits_is_woken_by_room_or_by_the_end() -> None:
    """And by nothing else."""
    windows = SendWindows()
    windows.open(1)
    windows.take(1, 65_535)
    results: list[object] = []

    def take() -> None:
        try:
            results.append(windows.take(1, 5))
            results.append(windows.take(1, 5))
        except StreamEndedError as error:
            results.append(error)

    waiting = threading.Thread(target=take)
    waiting.start()
    windows.add(0, 5)
    windows.add(1, 5)
    while not results:
        time.sleep(0.001)
    windows.close(1)
    waiting.join(20)

    assert results[0] == 5
    assert isinstance(results[1], StreamEndedError)


@pytest.mark.parametrize("stream_id", [0, 1])
def test_a_window_never_grows_past_the_largest(stream_id: int) -> None:
    """FLOW_CONTROL_ERROR, as the RFC has it."""
    windows = SendWindows()
    windows.open(1)

    with pytest.raises(ProtocolError) as caught:
        windows.add(stream_id, LARGEST_WINDOW_BYTES)
    assert caught.value.code is ErrorCode.FLOW_CONTROL_ERROR


@given(st.lists(st.tuples(st.sampled_from(["receive", "hold", "release"]), st.integers(1, 400)), max_size=60))
def test_a_receive_window_gives_back_what_it_took_and_no_more(steps: list[tuple[str, int]]) -> None:
    """A peer that keeps to what it was given is never refused, and the sum of both sides stays the window."""
    window, peer_may_send, received, held = ReceiveWindow(1000, 500), 1000, 0, 0
    for step, num_bytes in steps:
        if step == "receive":
            num_bytes = min(num_bytes, peer_may_send)
            peer_may_send -= num_bytes
            received += num_bytes
            opened = window.received(num_bytes)
        elif step == "hold":
            window.hold(num_bytes)
            held += num_bytes
            opened = 0
        else:
            num_bytes = min(num_bytes, held)
            held -= num_bytes
            opened = window.release(num_bytes)
        assert opened == 0 or held <= 500
        peer_may_send += opened
        received -= opened

        assert peer_may_send + received == 1000
        assert received < 250 or held > 500


@pytest.mark.parametrize(("seconds", "most"), [(GROWTH_SECONDS / 2, 4000), (2 * GROWTH_SECONDS, 1000)])
def test_the_window_of_a_fast_peer_grows_up_to_its_bound(seconds: float, most: int) -> None:
    """That of a slow one stays as it is."""
    now = 0.0
    window, peer_may_send = ReceiveWindow(1000, 500, 4000, clock=lambda: now), 1000
    for _ in range(20):
        now += seconds
        peer_may_send += window.received(peer_may_send) - peer_may_send

    assert peer_may_send == most


def test_a_window_does_not_grow_past_what_is_held() -> None:
    """What a fast peer has gained comes with the rest, when messages are released."""
    window = ReceiveWindow(1000, 500, 4000, clock=lambda: 0.0)
    window.hold(501)

    assert window.received(1000) == 0
    assert window.release(1) == 2000


def test_bytes_without_a_window_are_an_error() -> None:
    """The peer was told how much it may send."""
    window = ReceiveWindow(1000, 0)
    window.hold(1)
    window.received(1000)

    with pytest.raises(ProtocolError) as caught:
        window.received(1)
    assert caught.value.code is ErrorCode.FLOW_CONTROL_ERROR


LINK_BYTES_PER_SECOND = 50e6
ROUND_TRIP_SECONDS = 0.0005
PACKET_BYTES = 16 << 10


def ends_of(
    num_bytes: Sequence[int],
    num_links: int,
    *,
    are_in_turn: bool,
    lag_seconds: float = 0.0,
    rates: Sequence[float] = (LINK_BYTES_PER_SECOND,) * 2,
) -> list[float]:
    """Return when streams that begin together end, whose senders fill their windows, each link with one queue.

    `lag_seconds`: in which a sender answers, beside the round trip. `rates`: of the links, bytes/s.
    """
    now, order, ends, left, unread = 0.0, 0, [0.0] * len(num_bytes), list(num_bytes), list(num_bytes)
    turns = ReceiveTurns(lambda: now) if are_in_turn else None
    windows = [
        ReceiveWindow(1 << 20, 1 << 30, 4 << 20, turns=turns, round_trip_seconds=ROUND_TRIP_SECONDS, clock=lambda: now)
        for _ in num_bytes
    ]
    opened = [(0.0, index, index, 1 << 20, True) for index in range(len(num_bytes))]
    events, free_at = list[tuple[float, int, int, int, bool]](opened), [0.0] * num_links
    while events:
        now, _, index, size, is_opened = heapq.heappop(events)
        if is_opened:
            size, link = min(size, left[index]), index % num_links
            left[index] -= size
            while size:
                order, packet = order + 1, min(PACKET_BYTES, size)
                size, free_at[link] = size - packet, max(free_at[link], now) + packet / rates[link]
                heapq.heappush(events, (free_at[link], order, index, packet, False))
            continue
        ends[index], unread[index] = now, unread[index] - size
        if more := windows[index].received(size):
            order += 1
            heapq.heappush(events, (now + ROUND_TRIP_SECONDS + lag_seconds, order, index, more, True))
    return ends


def test_the_earliest_of_streams_that_share_a_card_ends_first() -> None:
    """As soon as it does alone, nearly; the last one no later than side by side."""
    sizes = [40 << 20] * 3
    even, in_turn = (ends_of(sizes, 1, are_in_turn=are_in_turn) for are_in_turn in (False, True))
    (alone,) = ends_of(sizes[:1], 1, are_in_turn=False)

    assert min(even) > 2.5 * alone
    assert in_turn[0] < 1.15 * alone
    assert in_turn[1] < 2.2 * alone
    assert max(in_turn) < 1.01 * max(even)


@pytest.mark.parametrize("round_trip_seconds", [0.0005, 0.003, 0.01])
def test_a_later_stream_that_meets_no_queue_is_as_fast_as_alone(
    round_trip_seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its window grows as long as what it was opened for comes after a round trip."""
    monkeypatch.setattr(sys.modules[__name__], "ROUND_TRIP_SECONDS", round_trip_seconds)
    (alone,) = ends_of([40 << 20], 1, are_in_turn=False)
    first, second = ends_of([80 << 20, 40 << 20], 2, are_in_turn=True)

    assert first < 2.01 * alone
    assert second < 1.1 * alone


@pytest.mark.parametrize("lag_seconds", [0.0, 0.001, 0.005])
def test_a_later_stream_does_not_wait_for_a_slow_sender_behind_a_trickle(lag_seconds: float) -> None:
    """What it was opened for is late, but little of earlier streams has come meanwhile."""
    sizes, rates = [4 << 20, 40 << 20], (1e6, LINK_BYTES_PER_SECOND)
    (_, even), (_, in_turn) = (
        ends_of(sizes, 2, are_in_turn=are_in_turn, lag_seconds=lag_seconds, rates=rates)
        for are_in_turn in (False, True)
    )

    assert in_turn < 1.1 * even


def test_an_earlier_stream_that_pauses_leaves_its_turn() -> None:
    """Until something of it comes again."""
    now = 0.0
    turns = ReceiveTurns(lambda: now)
    first, second = (ReceiveWindow(1 << 20, 1 << 30, turns=turns, clock=lambda: now) for _ in range(2))
    first.received(1 << 20)

    assert second.received(1 << 20) == LEAST_WINDOW_BYTES
    now += COMING_SECONDS
    assert second.received(LEAST_WINDOW_BYTES) == 1 << 20
    first.received(1)
    assert second.received(1 << 20) == LEAST_WINDOW_BYTES
    first.close()
    assert second.received(LEAST_WINDOW_BYTES) == 1 << 20
