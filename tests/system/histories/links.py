"""Proxies before the processes of a cluster, whose connections can be cut at any moment."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Self

from tcp_proxy import TcpProxy
from tcp_server import HOST

_READ_BYTES = 1 << 16


class CuttableProxy(TcpProxy):
    """Forwards to a port what comes to its own."""

    def __init__(self) -> None:
        super().__init__(0)
        self.server_port = 0
        """Where the server listens."""
        self._writers: set[asyncio.StreamWriter] = set()

    async def forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Copy both ways until one end closes."""
        server_reader, server_writer = await asyncio.open_connection(HOST, self.server_port)
        self._writers |= {writer, server_writer}
        try:
            ways = [
                asyncio.create_task(_copy(reader, server_writer)),
                asyncio.create_task(_copy(server_reader, writer)),
            ]
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
            for way in ways:
                way.cancel()
            await asyncio.wait(ways)
        finally:
            self._writers -= {writer, server_writer}
            server_writer.close()

    def cut(self) -> None:
        """Reset every connection."""
        for writer in list(self._writers):
            writer.transport.abort()


class Links:
    """Proxies by name, served by a thread of their own while the context lasts."""

    def __init__(self, names: Sequence[str]) -> None:
        self._proxies = {name: CuttableProxy() for name in names}
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._open(), self._loop).result()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def address_of(self, name: str) -> str:
        """Return host:port of a proxy."""
        return f"{HOST}:{self._proxies[name].port}"

    def lead_to(self, ports: Mapping[str, int]) -> None:
        """Name the port behind each proxy."""
        for name, port in ports.items():
            self._proxies[name].server_port = port

    def cut(self, prefix: str) -> None:
        """Cut the connections of all proxies whose name begins so."""
        for name, proxy in self._proxies.items():
            if name.startswith(prefix):
                self._loop.call_soon_threadsafe(proxy.cut)

    async def _open(self) -> None:
        for proxy in self._proxies.values():
            await proxy.__aenter__()

    async def _close(self) -> None:
        for proxy in self._proxies.values():
            await proxy.__aexit__(None, None, None)


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError):
        while data := await reader.read(_READ_BYTES):
            writer.write(data)
            await writer.drain()
