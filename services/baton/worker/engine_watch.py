"""Watches whether a node's engine makes progress, which gRPC health and with it the pod's probes report.

A hung pass is found by what passes take here (`engine/step_cost.py`); what is not known yet, and whatever else an
engine's thread may be stuck in, by a bound that is set.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from enum import Enum

from baton.engine.events import EngineLoad

log = logging.getLogger(__name__)

LOST_FACTOR = 10.0
"""An engine that stands still for so many times the bound is taken for lost: only a new process helps."""
_LOOKS_PER_BOUND = 6
_PASS_LOOK_SECONDS = 0.25


class EngineHealth(Enum):
    """How an engine gets on."""

    MOVES = "moves"
    """It answers, and computes if it has something to compute."""
    STUCK = "stuck"
    """It has stood still for longer than the bound: it may come back, and gets nothing new meanwhile."""
    LOST = "lost"
    """It has stood still for so long that it will not come back."""


class EngineWatch:
    """Judges one engine by two signs: its thread carries out a command, and where it has work it counts passes.

    `call`: has a function run in the engine's thread between two passes (`Engine.call`). `load`: returns what the
    engine is doing (`Engine.load`). `stuck_seconds`: time of standing still after which it is stuck, above 0. A pass
    may last that long. `clock`: seconds, monotonic. `sleep`: waits.
    """

    def __init__(
        self,
        call: Callable[[Callable[[], None]], None],
        load: Callable[[], EngineLoad],
        stuck_seconds: float,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._call, self._load = call, load
        self._stuck_seconds, self._clock = stuck_seconds, clock
        self._sleep = sleep
        self._is_asked = False  # written here before a question and by the engine's thread after it
        self._answered_at = clock()
        self._num_steps = -1
        self._had_work = False
        self._stepped_at = clock()

    async def run(self, on_change: Callable[[EngineHealth], Awaitable[None]]) -> None:
        """Tell of every change, for ever."""
        known = EngineHealth.MOVES
        while True:
            await self._sleep(self._stuck_seconds / _LOOKS_PER_BOUND)
            if (found := self.look()) is not known:
                level = logging.INFO if found is EngineHealth.MOVES else logging.WARNING
                log.log(level, "engine_progress state=%s passes=%d", found.value, self._num_steps)
                known = found
                await on_change(found)

    def look(self) -> EngineHealth:
        """Judge the engine as it is now."""
        now, load = self._clock(), self._load()
        has_work = load.num_running > 0 or load.num_pending_prompt_tokens > 0
        if load.num_steps != self._num_steps or not (self._had_work and has_work):
            self._num_steps, self._stepped_at = load.num_steps, now
        self._had_work = has_work
        if not self._is_asked:
            self._answered_at = now
            self._is_asked = True
            self._call(self._answer)
        still_seconds = now - min(self._answered_at, self._stepped_at)
        if still_seconds <= self._stuck_seconds:
            return EngineHealth.MOVES
        return EngineHealth.LOST if still_seconds > LOST_FACTOR * self._stuck_seconds else EngineHealth.STUCK

    def _answer(self) -> None:
        self._is_asked = False


async def watch_passes(
    is_hung: Callable[[], bool],
    on_change: Callable[[bool], None],
    *,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> None:
    """Tell when a pass begins to hang and when that is over, for ever.

    Two looks in a row must find it: a process that was itself stopped has not waited for its pass. `is_hung`: whether
    the pass that is computed takes longer than any that ends (`Engine.is_pass_hung`). `on_change`: told. `sleep`:
    waits.
    """
    was_hung = is_told = False
    while True:
        await sleep(_PASS_LOOK_SECONDS)
        found = is_hung()
        if is_told != (found and was_hung):
            is_told = not is_told
            log.log(logging.WARNING if is_told else logging.INFO, "pass_hung" if is_told else "pass_ended")
            on_change(is_told)
        was_hung = found
