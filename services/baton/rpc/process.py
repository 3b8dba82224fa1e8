"""What a service sets in its own process: what a stop signal does while it starts, and what is never collected."""

from __future__ import annotations

import gc
import os
import signal
from types import FrameType

_FIRST_PROCESS_ID = 1


def exit_on_startup_signal(process_id: int | None = None) -> None:
    """Have SIGTERM end this process at once, until somebody waits for it.

    It does so by itself, but for the first process of a container: the kernel gives that one no signal that it has no
    handler for, and a pod that is taken away while its model loads would stay for the whole of its grace.
    """
    if (os.getpid() if process_id is None else process_id) == _FIRST_PROCESS_ID:
        signal.signal(signal.SIGTERM, _end)


def _end(number: int, _frame: FrameType | None) -> None:
    os._exit(128 + number)


_NUM_NEW_OBJECTS = 20_000
"""Allocations between two collections of what is new. A request makes hundreds of objects and no cycles to speak of: at
Python's own 700, a gateway collects for 3 % of its time and finds next to nothing."""


def freeze_loaded_objects() -> None:
    """Collect once, then seldom, and leave everything that is alive out of it; for the end of a start.

    Modules, tokenizer and configuration are hundreds of thousands of objects: a full collection would walk all of them
    and hold up every stream meanwhile.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(_NUM_NEW_OBJECTS)
