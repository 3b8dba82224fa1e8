"""Frames out of bytes that come in any pieces."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from baton.grpc_sockets.frames import (
    END_HEADERS,
    END_STREAM,
    HAS_PRIORITY,
    PADDED,
    ErrorCode,
    Frame,
    FrameParser,
    FrameType,
    ProtocolError,
    pack_header,
)
from baton.grpc_sockets.limits import Limits

DATA = st.binary(max_size=300).map(lambda payload: (FrameType.DATA, 0, payload))
PINGS = st.just((FrameType.PING, 0, b"12345678"))
LAST = st.binary(max_size=40).map(lambda payload: (FrameType.DATA, END_STREAM, payload))


def wire(frame_type: FrameType, flags: int, payload: bytes, stream_id: int) -> bytes:
    """Return a frame's bytes."""
    return pack_header(len(payload), frame_type, flags, stream_id) + payload


def parse(*pieces: bytes, limits: Limits | None = None) -> list[Frame]:
    """Return the frames of bytes that come piece by piece."""
    parser = FrameParser(limits or Limits())
    return [frame for piece in pieces for frame in parser.feed(piece)]


@given(st.lists(st.one_of(DATA, PINGS, LAST), max_size=8), st.lists(st.integers(0, 3000), max_size=8))
def test_frames_do_not_depend_on_where_bytes_are_cut(
    frames: list[tuple[FrameType, int, bytes]], cuts: list[int]
) -> None:
    """Each comes once, whole and in order."""
    data = b"".join(wire(kind, flags, payload, 0 if kind == FrameType.PING else 1) for kind, flags, payload in frames)
    places = sorted({0, len(data), *(min(cut, len(data)) for cut in cuts)})
    pieces = [data[begin:end] for begin, end in pairwise(places)]

    assert [(frame.frame_type, frame.flags, frame.payload) for frame in parse(*pieces)] == frames


def test_padding_counts_for_the_window_and_for_nothing_else() -> None:
    """As RFC 9113, section 6.1, has it."""
    (frame,) = parse(wire(FrameType.DATA, PADDED, b"\x03text\x00\x00\x00", 1))

    assert frame.payload == b"text"
    assert frame.num_window_bytes == 8


def test_a_header_block_is_put_together() -> None:
    """Without padding and priority, from as many frames as it takes."""
    first = wire(FrameType.HEADERS, PADDED | HAS_PRIORITY | END_STREAM, b"\x01" + bytes(5) + b"ab" + b"\x00", 1)
    (frame,) = parse(first, wire(FrameType.CONTINUATION, 0, b"c", 1), wire(FrameType.CONTINUATION, END_HEADERS, b"", 1))

    assert frame.payload == b"abc"
    assert frame.is_last


@pytest.mark.parametrize(
    "data",
    [
        wire(FrameType.HEADERS, 0, b"a", 1) + wire(FrameType.DATA, 0, b"", 1),
        wire(FrameType.HEADERS, 0, b"a", 1) + wire(FrameType.CONTINUATION, END_HEADERS, b"", 3),
        wire(FrameType.CONTINUATION, END_HEADERS, b"", 1),
        wire(FrameType.DATA, PADDED, b"\x05abc", 1),
        wire(FrameType.DATA, PADDED, b"", 1),
        wire(FrameType.DATA, 0, b"abc", 0),
        wire(FrameType.PING, 0, b"short", 0),
        wire(FrameType.GOAWAY, 0, b"short", 0),
        wire(FrameType.SETTINGS, 0, b"", 1),
        wire(FrameType.PUSH_PROMISE, END_HEADERS, bytes(4), 1),
        pack_header(16_385, FrameType.DATA, 0, 1),
    ],
)
def test_a_frame_that_breaks_the_rules_is_refused(data: bytes) -> None:
    """With an error that names the rule."""
    with pytest.raises(ProtocolError):
        parse(data)


@pytest.mark.parametrize(
    "frame",
    [wire(FrameType.PING, 0, bytes(8), 0), wire(FrameType.SETTINGS, 0, b"", 0), wire(FrameType.DATA, 0, b"", 1)],
)
def test_a_flood_of_frames_that_cost_nothing_is_refused(frame: bytes) -> None:
    """A peer may not keep this side busy for free."""
    with pytest.raises(ProtocolError) as caught:
        parse(frame * 60, limits=Limits(num_control_frames_per_second=50))

    assert caught.value.code is ErrorCode.ENHANCE_YOUR_CALM


def test_a_header_block_without_end_is_refused() -> None:
    """Before it takes memory."""
    endless = wire(FrameType.HEADERS, 0, b"a", 1) + wire(FrameType.CONTINUATION, 0, bytes(1000), 1) * 40
    with pytest.raises(ProtocolError, match="header block of"):
        parse(endless, limits=Limits(header_bytes=4096))
