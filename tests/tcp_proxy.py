"""What proxies between two nodes have in common."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from types import TracebackType
from typing import Self

from tcp_server import listening


class TcpProxy(ABC):
    """Listens for connections while its context lasts; what becomes of each, a subclass says.

    Invariant: after the context no task of a connection is left.

    Args:
        port: Where it listens; 0: any free port.
    """

    def __init__(self, port: int) -> None:
        self.port = port
        """Where it listens, once it does."""

    async def __aenter__(self) -> Self:
        self._listening = listening(self.forward, port=self.port)
        self.port = await self._listening.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._listening.__aexit__(None, None, None)

    @abstractmethod
    async def forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve a client's connection, which is closed afterwards.

        Raises:
            ConnectionError: If the connection is over.
        """
