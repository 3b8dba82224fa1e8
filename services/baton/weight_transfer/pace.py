"""How fast weights may leave a machine beside its requests."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import ClassVar

from pydantic import Field

from baton.config.settings import ServiceSettings


class WeightSettings(ServiceSettings):
    """What other machines may take of this one."""

    group: ClassVar[str] = "Weights"

    weight_bytes_per_second: int = Field(default=100_000_000, ge=0)
    """Rate at which other machines together take weights from this one while it has requests; 0: any."""


class Pace:
    """Keeps an event loop's transfers to a rate while the machine has something better to do. A rate of 0 is any."""

    def __init__(
        self,
        bytes_per_second: float = 0,
        is_needed: Callable[[], bool] = lambda: True,
        *,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._bytes_per_second = bytes_per_second
        self._is_needed = is_needed
        self._sleep = sleep
        self._clock = clock
        self._free_at = 0.0

    async def spend(self, num_bytes: int) -> None:
        """Wait until so many bytes more may have gone."""
        if not (self._bytes_per_second and self._is_needed()):
            self._free_at = 0.0
            return
        now = self._clock()
        self._free_at = max(now, self._free_at) + num_bytes / self._bytes_per_second
        await self._sleep(self._free_at - now)
