"""The REST port of a gateway, as somebody sees it who means it ill."""

from __future__ import annotations

import contextlib
import http.client
import os
import socket
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from attacks.victims import KEY, Damage, running
from system.plan import HOST, free_ports
from system.process import ServedProcess

SECONDS = 60.0
AUTHORIZED = f"authorization: Bearer {KEY}\r\n"


@dataclass
class HttpDoor:
    """A gateway that runs."""

    port: int
    process: ServedProcess

    def ask(self) -> None:
        """Ask whether it lives."""
        connection = http.client.HTTPConnection(HOST, self.port, timeout=SECONDS)
        with contextlib.closing(connection):
            connection.request("GET", "/health")
            response = connection.getresponse()
            assert response.read() == b'{"status":"ok"}'

    def damage(self) -> Damage:
        """Measure what an attack does to it."""
        return Damage(self.process.pid, self.ask)

    def connect(self) -> socket.socket:
        """Return a connection."""
        return socket.create_connection((HOST, self.port), timeout=SECONDS)

    def answer(self, data: bytes) -> bytes:
        """Return what it says to some bytes until it closes."""
        with self.connect() as connection:
            connection.sendall(data)
            return all_of(connection)

    def pour(self, head: bytes, pieces: Iterable[bytes]) -> tuple[int, bytes]:
        """Send a head, then pieces as long as they are taken; return the bytes of those, and the answer."""
        num_bytes = 0
        with self.connect() as connection:
            connection.sendall(head)
            connection.settimeout(0)
            for piece in pieces:
                if not _send(connection, piece):
                    break
                num_bytes += len(piece)
            connection.settimeout(SECONDS)
            return num_bytes, all_of(connection)


def _send(connection: socket.socket, piece: bytes) -> bool:
    """Send a piece whole; return whether it was taken, and not answered."""
    deadline = time.monotonic() + SECONDS
    view = memoryview(piece)
    while view:
        with contextlib.suppress(BlockingIOError):
            connection.recv(1, socket.MSG_PEEK)
            return False
        try:
            view = view[connection.send(view) :]
        except BlockingIOError:
            assert time.monotonic() < deadline
            time.sleep(0.001)
        except ConnectionError:
            return False
    return True


def all_of(connection: socket.socket) -> bytes:
    """Return what comes until the other side closes."""
    data = b""
    with contextlib.suppress(ConnectionError, TimeoutError):
        while more := connection.recv(65536):
            data += more
    return data


def head(path: str = "/v1/completions", headers: str = "") -> bytes:
    """Return the head of a POST of JSON."""
    return f"POST {path} HTTP/1.1\r\nhost: {HOST}\r\ncontent-type: application/json\r\n{headers}\r\n".encode()


@contextlib.contextmanager
def open_gateway(model_dir: Path, folder: Path, *, has_keys: bool = True, **settings: str) -> Iterator[HttpDoor]:
    """Run a gateway whose router is away for as long as the context lasts."""
    ports = free_ports(("http", "grpc", "router"))
    keys = folder / "keys"
    keys.write_text(f"alice:{KEY}\n")
    chosen = {
        "model_dir": os.fspath(model_dir),
        "model_name": "tiny",
        "http_port": str(ports["http"]),
        "grpc_port": str(ports["grpc"]),
        "router_address": f"{HOST}:{ports['router']}",
        **({"api_keys_file": os.fspath(keys)} if has_keys else {}),
        **settings,
    }
    door = HttpDoor(ports["http"], None)  # type: ignore[arg-type] # until it runs
    with running("gateway", chosen, folder, door.ask) as process:
        door.process = process
        yield door
