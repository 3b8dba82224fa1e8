"""Streams of one connection over a link that takes long for what they send."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator

from baton.grpc_sockets.headers import Code
from baton.grpc_sockets.server_connection import ServerCall
from baton.kv_transport.fast_channel import LIMITS
from grpc_sockets.peers import HOST, PATH, SECONDS, Listener, connected, serving

BYTES_PER_SECOND = 40e6
MESSAGE_BYTES = 1 << 20


@contextlib.contextmanager
def narrow_link(port: int) -> Iterator[int]:
    """Forward one connection to a port, what comes back at `BYTES_PER_SECOND`; yield where it listens."""
    with socket.create_server((HOST, 0)) as server, contextlib.ExitStack() as stack:

        def forward() -> None:
            near = stack.enter_context(server.accept()[0])
            far = stack.enter_context(socket.create_connection((HOST, port)))
            far.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
            threading.Thread(target=copy, args=(near, far, 0.0), daemon=True).start()
            copy(far, near, 1 / BYTES_PER_SECOND)

        def copy(source: socket.socket, target: socket.socket, byte_seconds: float) -> None:
            due = time.monotonic()
            with contextlib.suppress(OSError):
                while data := source.recv(1 << 15):
                    target.sendall(data)
                    due = max(due, time.monotonic() - 0.002) + len(data) * byte_seconds
                    time.sleep(max(0.0, due - time.monotonic()))

        threading.Thread(target=forward, daemon=True).start()
        yield server.getsockname()[1]


class NotingListener(Listener):
    """Notes whose message has come."""

    def __init__(self, name: str, notes: list[str]) -> None:
        super().__init__()
        self._name, self._notes = name, notes

    def message(self, data: memoryview) -> None:
        """Note a message."""
        self._notes.append(self._name)
        self.arrived.release()


def test_of_two_streams_the_later_one_waits() -> None:
    """Four messages of the later stream come after the twelve of the earlier one, which sends already."""

    def send(call: ServerCall) -> None:
        for _ in range(int(call.request)):
            call.send(bytes(MESSAGE_BYTES))

    come: list[str] = []
    earlier, later = NotingListener("earlier", come), NotingListener("later", come)
    with serving(send) as port, narrow_link(port) as link, connected(link, limits=LIMITS) as connection:
        connection.call(PATH, b"12", earlier)
        assert earlier.arrived.acquire(timeout=SECONDS)
        connection.call(PATH, b"4", later)

        assert earlier.result().code is Code.OK
        assert later.result().code is Code.OK
        after = come[::-1].index("earlier")
        assert after >= 2, come  # evenly shared, all four would have come before the earlier one's last
