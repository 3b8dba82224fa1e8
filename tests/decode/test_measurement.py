"""The frames of a request's KV in time."""

from __future__ import annotations

import pytest

from baton.decode.measurement import MAX_FRAMES, FrameTimeline, LinkMeter, ReceptionClock
from baton.kv.stream import KvFrame
from baton.v1.generation_pb2 import KvFrameTiming

_FRAME = KvFrame(layer_begin=2, num_layers=1, token_begin=16, num_tokens=4, keys=b"12", values=b"3")


def test_times_count_from_the_call() -> None:
    """In microseconds, and never from before it, whatever two clocks make of a short way."""
    timeline = FrameTimeline(began=100.0)
    timeline.add(_FRAME, ready=100.25, arrived=100.5)
    timeline.add(_FRAME, ready=99.9, arrived=100.75)

    message = timeline.to_proto(computed=100.3)

    extent = {"layer_begin": 2, "layer_count": 1, "token_begin": 16, "token_count": 4, "byte_count": 3}
    assert list(message.frames) == [
        KvFrameTiming(ready_micros=250_000, arrived_micros=500_000, **extent),
        KvFrameTiming(ready_micros=0, arrived_micros=750_000, **extent),
    ]
    assert message.computed_micros == 300_000
    assert timeline.to_proto(computed=0.0).computed_micros == 0


def test_a_long_stream_is_cut() -> None:
    """What is drawn stays small."""
    timeline = FrameTimeline(began=0.0)
    for index in range(MAX_FRAMES + 3):
        timeline.add(_FRAME, ready=index, arrived=index)

    assert len(timeline.to_proto(computed=0.0).frames) == MAX_FRAMES


def test_the_link_is_not_busy_with_what_is_held_back() -> None:
    """Time for which this node had no room for the next frame is none of the link's."""
    clock = ReceptionClock(called=0.0)
    clock.layout_arrived(0.0)
    clock.frame_arrived(1.0, 0.0, 10)

    clock.free_since = 5.0
    clock.frame_arrived(6.0, 0.5, 10)

    assert clock.busy_seconds == pytest.approx(2.0)


def test_no_frame_comes_before_it_was_ready() -> None:
    """A call that took 0.3 s to get there and 0.7 s back puts the sender's 0 at 0.5 s by halves, which is too late.

    Frames that seem to come early tell that the sender's clock began earlier: what they take, and when the sender had
    computed everything, are told by the first frame that needed no time.
    """
    clock = ReceptionClock(called=0.0)
    clock.layout_arrived(1.0)

    clock.frame_arrived(1.2, 0.9, 10)
    clock.frame_arrived(1.7, 1.3, 10)
    clock.summary_arrived(1.3)

    assert clock.origin == pytest.approx(0.3)
    assert clock.busy_seconds == pytest.approx(0.1)
    assert clock.exposed_seconds == pytest.approx(0.1)


def test_calls_of_a_link_together_tell_when_the_sender_began() -> None:
    """Alone they do not: half of the first is 0.49 s off, and a frame that takes 10 ms comes after 0.5 s."""
    link, behind = LinkMeter(), 1000.0
    for way, answer in [(0.99, 0.01), (0.02, 0.8), (0.99, 0.7)]:
        clock, arrived = ReceptionClock(called=behind), behind + way
        clock.begin(link)
        clock.layout_arrived(arrived + answer, arrived - 77.0)
        behind += 10.0

    clock.frame_arrived(arrived + 5.01, 5.0, 10)

    assert clock.origin == pytest.approx(arrived, abs=0.006)
    assert clock.busy_seconds == pytest.approx(0.01, abs=0.006)


@pytest.mark.parametrize("sender_seconds", [0.0, 3.0, 5e6])
def test_a_clock_that_has_begun_anew_is_another_one(sender_seconds: float) -> None:
    """As is one of which nothing is told: half of the call, which is all that is known."""
    clock = ReceptionClock(called=10.0)
    for called, told in [(10.0, 5000.0), (20.0, sender_seconds)]:
        clock.called = called
        clock.layout_arrived(called + 1.0, told)

    assert clock.origin == pytest.approx(20.5)


def test_streams_of_a_link_share_its_time() -> None:
    """Of two whose frames are ready at once, and take 1 s each, neither is told that the link took 2 s for its own."""
    link, clocks = LinkMeter(), [ReceptionClock(called=0.0), ReceptionClock(called=0.0)]
    for clock in clocks:
        clock.begin(link)
        clock.layout_arrived(0.0)

    for layer in range(8):
        for number, clock in enumerate(clocks):
            clock.frame_arrived(2.0 * layer + 1.0 + number, 2.0 * layer, 100)

    assert [clock.busy_seconds for clock in clocks] == pytest.approx([8.0, 8.0], rel=0.1)
    assert link.busy_seconds == pytest.approx(16.0)


def test_a_stream_that_waits_for_an_earlier_one_is_told_what_the_link_needs_for_it() -> None:
    """Its one frame, ready at once, comes with the last of eight, a little of it beside each of them."""
    link, earlier, later = LinkMeter(), ReceptionClock(called=0.0), ReceptionClock(called=0.0)
    for clock in (earlier, later):
        clock.begin(link)
        clock.layout_arrived(0.0)

    for frame in range(8):
        earlier.frame_arrived(1.1 * (frame + 1), 0.0, 100)
    later.frame_arrived(9.0, 0.0, 100)

    assert later.busy_seconds == pytest.approx(1.0)


def test_a_link_is_busy_with_a_frame_that_was_on_its_way_before_others_came_and_went() -> None:
    """It arrives after them; no moment is lost, and none counts twice."""
    link = LinkMeter()
    seen = []

    for way_began, now in [(1.0, 1.5), (2.0, 3.0), (0.0, 4.0), (6.0, 7.0), (3.5, 8.0), (8.0, 9.0)]:
        link.frame_arrived(way_began, now, 100)
        seen.append(link.busy_seconds)

    assert seen == pytest.approx([0.5, 1.5, 4.0, 5.0, 8.0, 9.0])
    assert link.spans == [(0.0, 9.0)]


def test_a_stream_after_a_broken_one_adds_to_its_time() -> None:
    """Over another link, whose time it does not know."""
    clock = ReceptionClock(called=0.0)
    clock.layout_arrived(0.0)
    clock.frame_arrived(1.0, 0.0, 100)

    link = LinkMeter()
    link.frame_arrived(0.5, 1.5, 1000)
    clock.begin(link)
    clock.layout_arrived(2.0)
    clock.frame_arrived(5.0, 1.0, 300)

    assert clock.busy_seconds == pytest.approx(1.0 + 3.0)
