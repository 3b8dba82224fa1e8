"""Bytes of requests that a process holds, bounded over all connections: clients decide how many arrive, not memory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from baton.errors import OverloadedError


class HeldBytes:
    """Counts bytes of bodies from their arrival until the answer's end. Used on the event loop only.

    Invariant: there are never more than `max_bytes`, but for one body that is alone.

    Args:
        max_bytes: Bound, above 0.
    """

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.num_bytes = 0
        """Bytes that are held."""

    def take(self, num_bytes: int) -> None:
        """Take bytes.

        Raises:
            OverloadedError: If there is no room beside those that are held.
        """
        if self.num_bytes and self.num_bytes + num_bytes > self.max_bytes:
            raise OverloadedError(
                f"{self.num_bytes} bytes of requests are in work, and memory has room for {self.max_bytes};"
                " try again soon"
            )
        self.num_bytes += num_bytes

    def give_back(self, num_bytes: int) -> None:
        """Give bytes back."""
        self.num_bytes -= num_bytes

    @contextmanager
    def holding(self, num_bytes: int) -> Iterator[None]:
        """Hold bytes for as long as the context lasts.

        Raises:
            OverloadedError: If there is no room for them.
        """
        self.take(num_bytes)
        try:
            yield
        finally:
            self.give_back(num_bytes)
