"""The frames of a request's KV in time."""

from __future__ import annotations

import pytest

from baton.decode.measurement import MAX_FRAMES, FrameTimeline, ReceptionClock
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
    clock.frame_arrived(1.0, ready_seconds=0.0)

    clock.held_back(5.0)
    clock.frame_arrived(6.0, ready_seconds=0.5)

    assert clock.busy_seconds == pytest.approx(2.0)
