"""What waits to be sent on one KV stream: frames in order, and the first token ahead of them."""

from __future__ import annotations

import asyncio
from collections import deque

from baton.engine.events import EngineEvent, Failed, TokenReady
from baton.kv.stream import KvFrame

Item = KvFrame | EngineEvent


class Outbox:
    """Filled by the engine's thread through the event loop, emptied by the stream.

    The first token overtakes the frames that still wait: the client need not wait for the transfer. Everything else
    keeps its order. It holds at most the KV of its prompt; all outboxes of a node are bounded by `OutboxBudget`, which
    counts no frame of a stream that has failed or ended: none is held then.
    """

    def __init__(self) -> None:
        self._items: deque[Item] = deque()
        self._filled = asyncio.Event()
        self._is_over = False

    def put(self, item: Item) -> None:
        """Take a frame or an event. On the event loop only."""
        if self._is_over:
            return
        if isinstance(item, Failed):
            self.close()
        if isinstance(item, TokenReady):
            self._items.appendleft(item)
        else:
            self._items.append(item)
        self._filled.set()

    def close(self) -> None:
        """Drop what waits, and what still comes: nobody wants it."""
        self._is_over = True
        self._items.clear()

    async def get(self) -> Item:
        """Return the next item, waiting for it."""
        while not self._items:
            self._filled.clear()
            await self._filled.wait()
        return self._items.popleft()
