"""A low finding: frames that cost work and no window come without end; HEADERS and WINDOW_UPDATE were not counted."""

from __future__ import annotations

import itertools
import struct
from collections.abc import Iterable
from pathlib import Path

import pytest

from attacks.frames.door import PREFILL_PATH, frame, is_closed, open_node, opening, taken
from attacks.victims import MIB, full
from baton.grpc_sockets.frames import ErrorCode, FrameType
from baton.grpc_sockets.limits import Limits
from baton.grpc_sockets.server_connection import ServerCall, ServerConnection
from checkpoints import checkpoint
from grpc_sockets.peers import PATH, FramePeer, serving

KINDS = (
    "rapid reset",
    "headers",
    "refused headers",
    "window updates",
    "pings",
    "settings",
    "single bytes",
    "late data",
)


def flood(kind: str, count: int, path: str) -> bytes:
    """Return so many frames of a kind, and what must come before them."""
    numbers = range(1, 2 * count, 2)
    frames: Iterable[bytes]
    match kind:
        case "rapid reset":
            pairs = (opening(each, path) + frame(FrameType.RST_STREAM, bytes(4), stream_id=each) for each in numbers)
            frames = itertools.islice(pairs, count // 2)
        case "headers":
            frames = (opening(each, path) for each in numbers)
        case "refused headers":
            frames = (opening(each, "/nothing/There") for each in numbers)
        case "window updates":
            frames = (frame(FrameType.WINDOW_UPDATE, struct.pack(">I", 1)) for _ in numbers)
        case "pings":
            frames = (frame(FrameType.PING, bytes(8)) for _ in numbers)
        case "settings":
            frames = (frame(FrameType.SETTINGS) for _ in numbers)
        case "single bytes":
            first = opening(1, path) + frame(FrameType.DATA, struct.pack(">BI", 0, 1 << 20), stream_id=1)
            frames = itertools.chain([first], (frame(FrameType.DATA, b"x", stream_id=1) for _ in numbers))
        case _:
            first = opening(1, path) + frame(FrameType.RST_STREAM, bytes(4), stream_id=1)
            frames = itertools.chain([first], (frame(FrameType.DATA, b"x", stream_id=1) for _ in numbers))
    return b"".join(frames)


@full
@pytest.mark.parametrize("kind", KINDS)
def test_a_flood_ends_its_connection(tmp_path: Path, kind: str) -> None:
    """After some thousand frames; nobody else waits."""
    data = flood(kind, 100_000, PREFILL_PATH)
    with open_node(checkpoint("llama"), tmp_path) as door:
        with door.damage() as damage, door.connect() as connection:
            num_bytes = taken(connection, data)
            is_cut = num_bytes < len(data) or is_closed(connection)
        print(f"{kind}: {num_bytes} of {len(data)} bytes taken, {damage}")

    assert is_cut
    assert damage.cpu_seconds < 1.5
    assert damage.most_bytes < 16 * MIB


@pytest.mark.parametrize("kind", KINDS)
def test_a_small_flood_is_told_to_be_calm(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its connection ends by a GOAWAY that names it, which a reset may overtake where more was sent."""
    count = 2_100 if kind == "window updates" else 200
    said: list[ErrorCode] = []
    say_goodbye = ServerConnection._say_goodbye

    def say(connection: ServerConnection, code: ErrorCode, message: str) -> None:
        said.append(code)
        say_goodbye(connection, code, message)

    def answer(call: ServerCall) -> None:
        call.send(b"")

    monkeypatch.setattr(ServerConnection, "_say_goodbye", say)
    with serving(answer, limits=Limits(num_control_frames_per_second=10)) as port:
        peer = FramePeer.connect(port)
        with peer.socket:
            peer.greet()
            taken(peer.socket, flood(kind, count, PATH))

            assert is_closed(peer.socket)
    assert said == [ErrorCode.ENHANCE_YOUR_CALM]
