"""A request on its way to a server: what has come of it, counted against what all requests together may take."""

from __future__ import annotations

import threading
from collections.abc import Mapping

from baton.grpc_sockets.flow_control import ReceiveWindow
from baton.grpc_sockets.frame_io import PREFIX_BYTES, FrameReader, message_bytes
from baton.grpc_sockets.headers import CallError, Code
from baton.grpc_sockets.limits import Limits, ServerLimits

_PIECE_BYTES = 16 << 10


class Budget:
    """Something of which all connections of a server have only so much. Safe from any thread."""

    def __init__(self, most: int) -> None:
        self._left = most
        self._lock = threading.Lock()

    def take(self, amount: int) -> bool:
        """Take some if there is so much left; return whether there was."""
        with self._lock:
            if amount > self._left:
                return False
            self._left -= amount
            return True

    def give_back(self, amount: int) -> None:
        """Give back what was taken."""
        with self._lock:
            self._left += amount


class ServerBudgets:
    """What all connections of a server share."""

    def __init__(self, limits: ServerLimits) -> None:
        self.calls = Budget(limits.num_calls)
        """Calls that arrive or are served."""
        self.request_bytes = Budget(limits.num_request_bytes)
        """Bytes of their requests."""


class IncomingRequest:
    """A request that is arriving. It takes memory as it comes, never as it was announced.

    It must be complete at `due_seconds`, monotonic; `num_bytes` are taken from the budget, to be given back by whoever
    drops the request.
    """

    def __init__(
        self, path: str, headers: Mapping[str, str], limits: Limits, due_seconds: float, budget: Budget
    ) -> None:
        self.path, self.headers = path, headers
        self.window = ReceiveWindow(limits.stream_window_bytes, limits.message_bytes)
        self.due_seconds = due_seconds
        self.num_bytes = 0
        self._max_bytes = limits.message_bytes
        self._budget = budget
        self._data = bytearray()

    def fill(self, reader: FrameReader, num_bytes: int) -> None:
        """Receive the next bytes; raise CallError if they are no fit message, OSError if the connection breaks."""
        while num_bytes:
            piece = reader.read(min(num_bytes, _PIECE_BYTES))
            num_bytes -= len(piece)
            try:
                self._add(piece)
            except CallError:
                reader.skip(num_bytes)
                raise

    def message(self) -> bytes | None:
        """Return the whole message; None: it is not whole."""
        num_bytes = len(self._data) - PREFIX_BYTES
        if num_bytes < 0 or num_bytes < message_bytes(self._data, 0, self._max_bytes):
            return None
        message, self._data = bytes(memoryview(self._data)[PREFIX_BYTES:]), bytearray()
        return message

    def _add(self, piece: bytes) -> None:
        if not self._budget.take(len(piece)):
            raise CallError(Code.RESOURCE_EXHAUSTED, "there is no memory for more requests; try again soon")
        self.num_bytes += len(piece)
        self._data += piece
        if len(self._data) < PREFIX_BYTES:
            return
        if len(self._data) > PREFIX_BYTES + message_bytes(self._data, 0, self._max_bytes):
            raise CallError(Code.UNIMPLEMENTED, "more than one request message")
