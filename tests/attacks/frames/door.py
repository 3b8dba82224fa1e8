"""The port on which nodes stream KV, as somebody sees it who sends frames of his own."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import hpack

from attacks.victims import INTERNAL, Damage, running
from baton.grpc_sockets.frames import END_HEADERS, PREFACE, FrameType, pack_header, settings_frame
from system.plan import HOST, free_ports
from system.process import ServedProcess

PREFILL_PATH = f"/{INTERNAL}.PrefillService/Prefill"
SECONDS = 60.0


def frame(kind: FrameType, payload: bytes = b"", *, flags: int = 0, stream_id: int = 0) -> bytes:
    """Return a frame."""
    return pack_header(len(payload), kind, flags, stream_id) + payload


def opening(stream_id: int, path: str = PREFILL_PATH) -> bytes:
    """Return the frame that opens a call."""
    fields = {":method": "POST", ":scheme": "http", ":path": path, "content-type": "application/grpc", "te": "trailers"}
    block = bytes(hpack.Encoder().encode([hpack.NeverIndexedHeaderTuple(*each) for each in fields.items()]))
    return frame(FrameType.HEADERS, block, flags=END_HEADERS, stream_id=stream_id)


def streams(count: int) -> Sequence[int]:
    """Return the first stream ids of a client."""
    return range(1, 2 * count + 1, 2)


@dataclass
class FrameDoor:
    """A prefill node that runs."""

    port: int
    process: ServedProcess

    def connect(self) -> socket.socket:
        """Return a connection that has greeted."""
        connection = socket.create_connection((HOST, self.port), timeout=SECONDS)
        connection.sendall(PREFACE + settings_frame({}))
        return connection

    def ask(self) -> None:
        """Have a ping answered."""
        with self.connect() as connection:
            connection.sendall(frame(FrameType.PING, b"are you?"))
            received = b""
            while b"are you?" not in received:
                more = connection.recv(4096)
                if not more:
                    raise ConnectionError
                received += more

    def damage(self) -> Damage:
        """Measure what an attack does to it."""
        return Damage(self.process.pid, self.ask)


@contextlib.contextmanager
def open_node(model_dir: Path, folder: Path) -> Iterator[FrameDoor]:
    """Run a mock node that prefills, whose router is away, for as long as the context lasts."""
    ports = free_ports(("grpc", "fast", "router", "index"))
    settings = {
        "engine": "mock",
        "model_dir": os.fspath(model_dir),
        "node_id": "prefill-0",
        "port": str(ports["grpc"]),
        "fast_port": str(ports["fast"]),
        "router_address": f"{HOST}:{ports['router']}",
        "cache_index_address": f"{HOST}:{ports['index']}",
    }
    door = FrameDoor(ports["fast"], None)  # type: ignore[arg-type] # until it runs
    with running("prefill", settings, folder, door.ask) as process:
        door.process = process
        yield door


def taken(connection: socket.socket, data: bytes) -> int:
    """Send bytes as long as they are taken; return how many."""
    num_bytes = 0
    with contextlib.suppress(ConnectionError):
        while num_bytes < len(data):
            num_bytes += connection.send(data[num_bytes : num_bytes + 65536])
    return num_bytes


def is_closed(connection: socket.socket) -> bool:
    """Read to the end; return whether there was one."""
    try:
        while connection.recv(65536):
            pass
    except ConnectionError:
        return True
    except TimeoutError:
        return False
    return True
