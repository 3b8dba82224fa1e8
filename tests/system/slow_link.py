"""A TCP link of a given rate: a proxy whose bytes towards the caller are paced."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

_CHUNK_BYTES = 16 << 10
_HOST = "127.0.0.1"


class SlowLink:
    """Forwards connections to an address; what comes back passes at `bytes_per_second`, 0: unpaced.

    Args:
        target: Returns host:port to forward to, when a connection comes in.
    """

    def __init__(self, target: Callable[[], str]) -> None:
        self.bytes_per_second = 0.0
        self._target = target
        self._listener = socket.create_server((_HOST, 0))
        self.address = f"{_HOST}:{self._listener.getsockname()[1]}"
        self._lock = threading.Lock()
        self._free_at = 0.0

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(
        self, error_type: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            host, _, port = self._target().rpartition(":")
            far = socket.socket()
            far.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 * _CHUNK_BYTES)  # a link holds little on its way
            try:
                far.connect((host, int(port)))
            except OSError:  # nobody listens there any more
                near.close()
                far.close()
                continue
            threading.Thread(target=self._pump, args=(near, far, False), daemon=True).start()
            threading.Thread(target=self._pump, args=(far, near, True), daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket, is_paced: bool) -> None:
        try:
            while data := source.recv(_CHUNK_BYTES):
                if is_paced:
                    self._wait_for_turn(len(data))
                sink.sendall(data)
        except OSError:
            pass
        finally:
            for end in (source, sink):
                end.close()

    def _wait_for_turn(self, num_bytes: int) -> None:
        with self._lock:
            rate = self.bytes_per_second
            start = max(self._free_at, time.monotonic())
            self._free_at = start + (num_bytes / rate if rate else 0.0)
            wait_seconds = self._free_at - time.monotonic()
        if wait_seconds > 0:
            time.sleep(wait_seconds)
