"""A generation that a test takes forward token by token."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from typing import Any

from gateway.fake_cluster import finished, tokens

TIMEOUT_SECONDS = 20.0
TOKENS = {71: "h", 72: "i", 73: "j"}
"""What is generated. Of the byte-level alphabet, letters are 33 below ASCII."""


class Steps:
    """A generation whose next token comes when the test asks for it."""

    def __init__(self) -> None:
        self._asked = threading.Semaphore(0)

    def next(self) -> None:
        """Have the next token generated."""
        self._asked.release()

    async def script(self, request: Any) -> AsyncIterator[Any]:
        """Generate TOKENS one by one."""
        for index, token_id in enumerate(TOKENS):
            assert await asyncio.to_thread(self._asked.acquire, timeout=TIMEOUT_SECONDS)
            yield tokens(index, [token_id])
        yield finished(request, "decode-0")
