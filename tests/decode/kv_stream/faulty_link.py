"""A TCP link between two nodes that does one thing wrong, at a given byte."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass
from typing import Literal

from tcp_proxy import TcpProxy
from tcp_server import HOST

Kind = Literal["cut", "reset", "stall", "drop", "double", "flip"]
KINDS: tuple[Kind, ...] = ("cut", "reset", "stall", "drop", "double", "flip")
"""End of stream; connection reset; silence; bytes lost, sent twice, or with a bit flipped."""


@dataclass(frozen=True)
class Fault:
    """What goes wrong with the bytes from the server to the client."""

    kind: Kind
    """What."""
    at: int
    """First byte that is hit, from 0."""
    length: int = 1
    """Bytes dropped or doubled; for a flip, the bit."""


class FaultyLink(TcpProxy):
    """Forwards connections to a port; every connection meets the same fault.

    Args:
        server_port: Where the server listens.
        fault: What goes wrong; None: nothing.
        port: Where the link listens; 0: any free port.
    """

    def __init__(self, server_port: int, fault: Fault | None = None, *, port: int = 0) -> None:
        super().__init__(port)
        self.fault = fault
        self.num_connections = 0
        self.num_bytes = 0
        """From the server, over all connections."""
        self._server_port = server_port

    async def forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Forward a connection as far as the fault allows."""
        self.num_connections += 1
        server_reader, server_writer = await asyncio.open_connection(HOST, self._server_port)
        upward = asyncio.create_task(_copy(reader, server_writer))
        try:
            await self._copy_down(server_reader, writer)
        finally:
            upward.cancel()
            await asyncio.wait({upward})
            server_writer.close()

    async def _copy_down(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        begin, fault = 0, self.fault
        while data := await reader.read(65536):
            self.num_bytes += len(data)
            if fault is not None and begin <= fault.at < begin + len(data):
                place = fault.at - begin
                writer.write(data[:place])
                await writer.drain()
                if fault.kind == "cut":
                    return
                if fault.kind == "reset":
                    writer.transport.abort()
                    return
                if fault.kind == "stall":
                    await asyncio.Event().wait()
                begin += len(data)
                data = _damaged(data[place:], fault)
            else:
                begin += len(data)
            writer.write(data)
            await writer.drain()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
        writer.write_eof()


def _damaged(data: bytes, fault: Fault) -> bytes:
    if fault.kind == "drop":
        return data[fault.length :]
    if fault.kind == "double":
        return data[: fault.length] + data
    return bytes([data[0] ^ 1 << fault.length % 8]) + data[1:]
