"""Flow control on both sides, without a connection."""

from __future__ import annotations

import threading
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from baton.grpc_sockets import flow_control
from baton.grpc_sockets.flow_control import (
    GIVE_WAY_SECONDS,
    GROWTH_SECONDS,
    TURN_BYTES,
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


LARGE = 1 << 20


def test_a_later_stream_takes_little_at_once() -> None:
    """So that the earliest one does not wait for much when it has something to send."""
    windows = SendWindows()
    for stream_id in (1, 3):
        windows.open(stream_id)
        windows.add(stream_id, LARGE)
    windows.add(0, 3 * LARGE)

    assert windows.take(3, LARGE) == TURN_BYTES
    assert windows.take(1, LARGE) == LARGE
    windows.close(1)
    assert windows.take(3, LARGE) == LARGE - TURN_BYTES + 65_535


def test_where_the_peer_is_the_limit_the_earliest_stream_goes_first() -> None:
    """Small messages, which tell of a first token, wait for nobody."""
    windows = SendWindows()
    for stream_id in (1, 3, 5):
        windows.open(stream_id)
    windows.add(0, 1000)

    def is_behind(stream_id: int) -> bool:
        try:
            return windows.take(stream_id, LARGE, time.monotonic(), most=5) != 5
        except TimeoutError:
            return True

    assert windows.take(1, LARGE) == 65_535
    assert not is_behind(3)  # the first one's window has been shut since it began
    windows.add(1, 10)
    assert is_behind(3)  # it is open
    assert windows.take(1, LARGE) == 10
    assert is_behind(3)  # it has just been opened: what came was taken, and it will be again
    assert windows.take(5, 100) == 100
    time.sleep(GIVE_WAY_SECONDS)
    assert not is_behind(3)
    windows.add(1, 10)
    windows.take(1, LARGE)
    windows.close(3)
    with pytest.raises(StreamEndedError):
        windows.take(3, LARGE)
    assert is_behind(5)
    windows.close_all()
    with pytest.raises(StreamEndedError):
        windows.take(5, LARGE)


@pytest.mark.parametrize("ending", ["the message's end", "the stream's end", "nothing", "its patience"])
def test_who_is_behind_goes_on_when_the_earlier_one_gives_way(ending: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It ends, or its peer takes nothing for a while; or the later one has waited long."""
    give_way_seconds = {"nothing": 0.2, "its patience": 1.0}.get(ending, 20.0)
    monkeypatch.setattr(flow_control, "GIVE_WAY_SECONDS", give_way_seconds)
    if ending == "its patience":
        monkeypatch.setattr(flow_control, "PATIENCE_SECONDS", 0.3)
    windows = SendWindows()
    windows.open(1)
    windows.open(3)
    windows.add(0, 4 * LARGE)
    windows.take(1, LARGE)
    windows.add(1, 5)
    windows.take(1, LARGE)
    taken: list[int] = []
    waiting = threading.Thread(target=lambda: taken.append(windows.take(3, LARGE, time.monotonic() + 10, most=5)))
    waiting.start()
    waiting.join(0.05)
    assert not taken

    if ending == "the message's end":
        windows.add(1, LARGE)
        windows.take(1, LARGE - 65_540)
    elif ending == "the stream's end":
        windows.close(1)
    began = time.monotonic()
    while ending == "its patience" and not taken and time.monotonic() < began + 5:
        windows.add(1, 5)
        windows.take(1, LARGE)
        time.sleep(0.005)
    waiting.join(5 if ending != "its patience" else 0.01)

    assert taken == [5]


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
    window, peer_may_send = ReceiveWindow(1000, 500, 4000, lambda: now), 1000
    for _ in range(20):
        now += seconds
        peer_may_send += window.received(peer_may_send) - peer_may_send

    assert peer_may_send == most


def test_a_window_does_not_grow_past_what_is_held() -> None:
    """What a fast peer has gained comes with the rest, when messages are released."""
    window = ReceiveWindow(1000, 500, 4000, lambda: 0.0)
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
