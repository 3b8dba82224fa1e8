"""A server of TCP connections whose end leaves none of them."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from typing import Any, TypeAlias

HOST = "127.0.0.1"
Serve: TypeAlias = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Coroutine[Any, Any, None]]
"""Serves one connection, which is closed afterwards; cancelled, with its connection cut, where the server ends."""


@asynccontextmanager
async def listening(serve: Serve, *, port: int = 0, context: ssl.SSLContext | None = None) -> AsyncIterator[int]:
    """Serve connections on a port of 127.0.0.1 (0: any free one), which is yielded.

    `asyncio.start_server` leaves sockets open that come as the loop ends: its tasks, or that of `serve`, are cancelled
    before they have begun, and so run no `finally`.
    """
    loop = asyncio.get_running_loop()
    tasks = set[asyncio.Task[None]]()

    def accept() -> None:
        connection, _ = listener.accept()
        task = asyncio.create_task(_serve(connection, serve, context))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    with socket.create_server((HOST, port), backlog=100) as listener:
        listener.setblocking(False)
        loop.add_reader(listener, accept)
        try:
            yield listener.getsockname()[1]
        finally:
            loop.remove_reader(listener)
            await asyncio.sleep(0)  # each task has begun: it closes its connection
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


async def _serve(connection: socket.socket, serve: Serve, context: ssl.SSLContext | None) -> None:
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader()
    protocol = asyncio.StreamReaderProtocol(reader)
    transport, _ = await loop.connect_accepted_socket(lambda: protocol, connection, ssl=context)
    writer = asyncio.StreamWriter(transport, protocol, reader, loop)
    try:
        with suppress(ConnectionError):  # the client has gone
            await serve(reader, writer)
    except BaseException:
        transport.abort()  # `close` would wait, beyond the test, until a client that has gone takes the rest
        raise
    writer.close()
