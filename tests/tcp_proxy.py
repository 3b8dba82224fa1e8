"""What proxies between two nodes have in common."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from types import TracebackType
from typing import Self

HOST = "127.0.0.1"


class TcpProxy(ABC):
    """Listens for connections while its context lasts; what becomes of each, a subclass says.

    Invariant: after the context no task of a connection is left.

    Args:
        port: Where it listens; 0: any free port.
    """

    def __init__(self, port: int) -> None:
        self.port = port
        """Where it listens, once it does."""
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, HOST, self.port)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.close()
        for task in list(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    @abstractmethod
    async def forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve a client's connection, which is closed afterwards.

        Raises:
            ConnectionError: If the connection is over.
        """

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            await self.forward(reader, writer)
        except (asyncio.CancelledError, ConnectionError):
            pass  # the test is over, or one end has gone
        finally:
            writer.close()
            self._tasks.discard(task)
