"""Connections that come as a test's loop ends."""

from __future__ import annotations

import asyncio
import gc
import socket

from tcp_server import HOST, listening


def test_a_connection_is_closed_however_early_the_loop_ends() -> None:
    """After each number of turns until it is served; pytest is told of every socket that is left open."""

    async def end_after(num_turns: int) -> bool:
        is_served = False

        async def serve(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
            nonlocal is_served
            is_served = True
            await reader.read()

        async with listening(serve) as port:
            with socket.create_connection((HOST, port)):
                for _ in range(num_turns):
                    await asyncio.sleep(0)
        return is_served

    assert any(asyncio.run(end_after(num_turns)) for num_turns in range(100))
    gc.collect()
