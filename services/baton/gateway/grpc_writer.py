"""Writes the output of one generation to a gRPC client: what comes while a message is written goes into the next."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from baton.gateway.requests import Delta
from baton.v1.generation_service_pb2 import GenerateResponse

Write = Callable[[GenerateResponse], Awaitable[None]]


class GrpcWriter:
    """Takes deltas without blocking, and writes them while `run` runs.

    What waits is part of the generation's own output, which its token limit bounds. A client that takes nothing is
    noticed by the connection's pings, or by the request's time limit.
    """

    def __init__(self, write: Write) -> None:
        self._write = write
        self._waiting: GenerateResponse | None = None
        self._has_news = asyncio.Event()
        self._is_closed = False

    def take(self, delta: Delta) -> None:
        """Take the next output."""
        if self._waiting is None:
            self._waiting = GenerateResponse()
        self._waiting.text += delta.text
        self._waiting.token_ids.extend(delta.token_ids)
        self._waiting.logprobs.extend(delta.logprobs)
        self._has_news.set()

    def close(self) -> None:
        """Let `run` return once all is written."""
        self._is_closed = True
        self._has_news.set()

    async def run(self) -> None:
        """Write what comes until `close`."""
        while True:
            await self._has_news.wait()
            self._has_news.clear()
            while self._waiting is not None:
                response, self._waiting = self._waiting, None
                await self._write(response)
            if self._is_closed:
                return
