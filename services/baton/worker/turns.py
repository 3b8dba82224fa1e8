"""Hands what other threads have for the event loop over in small parts, so that it gets to everything else between."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

ItemT = TypeVar("ItemT")


class Turns(Generic[ItemT]):
    """Has the event loop take items in their order, one in each of its turns.

    The loop carries out in one turn all that it was asked for before: items that come faster than it takes them would
    keep it from tokens and heartbeats until none is left.

    Invariant, kept on the loop: while items wait, exactly one call of `_take_next` is due.

    Args:
        loop: Where they are taken.
        take: Takes one; what it raises is the loop's to report, and the next one is taken all the same.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, take: Callable[[ItemT], None]) -> None:
        self._loop = loop
        self._take = take
        self._items: deque[ItemT] = deque()

    def put(self, item: ItemT) -> None:
        """Have an item taken, from any thread; it is dropped if the loop is closed."""
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._add, item)

    def _add(self, item: ItemT) -> None:
        self._items.append(item)
        if len(self._items) == 1:
            self._loop.call_soon(self._take_next)

    def _take_next(self) -> None:
        item = self._items.popleft()
        if self._items:
            self._loop.call_soon(self._take_next)
        self._take(item)
