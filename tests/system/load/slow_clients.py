"""Must show 6: clients that hold a connection and hardly move, and clients that generate beside them."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from system.client import DEADLINE_SECONDS
from system.rest import COMPLETION, COMPLETION_PATH

NUM_TOKENS = 32
"""Tokens of each answer that is read."""

_NUM_UNREAD_TOKENS = 48
_UNREAD_BUFFER_BYTES = 2048
_DRIBBLE_SECONDS = 2.0
"""Time between two bytes of a client that sends slowly."""
_NUM_HALF_BYTES = 1 << 20
"""Announced length of a body that never comes whole."""


def _request(num_tokens: int, *, is_kept: bool = True) -> bytes:
    body = json.dumps({**COMPLETION, "max_tokens": num_tokens, "ignore_eos": True, "stream": True}).encode()
    return _head(len(body), is_kept=is_kept) + body


def _head(num_bytes: int, *, is_kept: bool = True) -> bytes:
    connection = "keep-alive" if is_kept else "close"
    return (
        f"POST {COMPLETION_PATH} HTTP/1.1\r\nhost: baton\r\ncontent-type: application/json\r\n"
        f"content-length: {num_bytes}\r\nconnection: {connection}\r\n\r\n"
    ).encode()


_SLOW_HEAD = f"POST {COMPLETION_PATH} HTTP/1.1\r\nhost: baton\r\nx-slow: ".encode()
_SLOW_BODY = _head(_NUM_HALF_BYTES) + b'{"prompt": "'
_IDLE = b"GET /health HTTP/1.1\r\nhost: baton\r\n\r\n"
_OPENINGS = (_SLOW_HEAD, _SLOW_BODY, _IDLE, _request(_NUM_UNREAD_TOKENS))
"""A head that does not end, a body that does not end, a connection kept open, a stream that is never read."""


class SlowClients:
    """Clients of four kinds, in equal parts, connected inside `with`; half of them send a byte now and then.

    Invariant, checked at the end: the gateway has closed none of them.
    """

    def __init__(self, address: tuple[str, int], num_clients: int) -> None:
        self._address = address
        self._num_clients = num_clients
        self._sockets: list[socket.socket] = []
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._dribble, daemon=True)
        self.num_lost = 0
        """Clients whose connection the gateway has ended."""

    def __enter__(self) -> Self:
        for index in range(self._num_clients):
            client = socket.socket()
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _UNREAD_BUFFER_BYTES)
            client.settimeout(DEADLINE_SECONDS)
            client.connect(self._address)
            client.sendall(_OPENINGS[index % len(_OPENINGS)])
            self._sockets.append(client)
        for client in self._sockets[3 :: len(_OPENINGS)]:
            client.recv(1, socket.MSG_PEEK)  # its answer has begun
        self._thread.start()
        return self

    def __exit__(
        self, error_type: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._is_over.set()
        self._thread.join(DEADLINE_SECONDS)
        for client in self._sockets:
            client.close()

    def _dribble(self) -> None:
        senders = [
            client for index, client in enumerate(self._sockets) if _OPENINGS[index % 4] in (_SLOW_HEAD, _SLOW_BODY)
        ]
        while senders:
            for client in senders:
                if self._is_over.wait(_DRIBBLE_SECONDS / len(senders)):
                    return
                try:
                    client.send(b"a")
                except OSError:
                    self.num_lost += 1


@dataclass(frozen=True)
class Latencies:
    """Of requests that were read as they came, seconds."""

    first_token: tuple[float, ...]
    whole: tuple[float, ...]


async def generate_together(address: tuple[str, int], num_clients: int, num_requests: int) -> Latencies:
    """Run clients at once, each with some requests one after the other, and return when what came."""
    async with asyncio.timeout(DEADLINE_SECONDS), asyncio.TaskGroup() as tasks:
        running = [tasks.create_task(_generate(address, num_requests)) for _ in range(num_clients)]
    pairs: Sequence[tuple[float, float]] = [pair for task in running for pair in task.result()]
    return Latencies(tuple(first for first, _ in pairs), tuple(whole for _, whole in pairs))


async def _generate(address: tuple[str, int], num_requests: int) -> list[tuple[float, float]]:
    clock = asyncio.get_running_loop().time
    latencies = []
    for _ in range(num_requests):
        reader, writer = await asyncio.open_connection(*address)
        sent = clock()
        writer.write(_request(NUM_TOKENS, is_kept=False))
        status = await reader.readline()
        assert b" 200 " in status, status
        await reader.readuntil(b"data: ")
        first = clock()
        rest = await reader.read(-1)
        assert rest.rstrip().endswith((b"[DONE]", b"0")), rest[-200:]
        latencies.append((first - sent, clock() - sent))
        writer.close()
    return latencies
