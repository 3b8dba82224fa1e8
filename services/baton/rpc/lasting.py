"""Keeps the garbage collector away from what a process has loaded once and for all."""

from __future__ import annotations

import gc

_NUM_NEW_OBJECTS = 20_000
"""Allocations between two collections of what is new. A request makes hundreds of objects and no cycles to speak of: at
Python's own 700, a gateway collects for 3 % of its time and finds next to nothing."""


def keep_what_is_loaded() -> None:
    """Collect once, then seldom, and leave everything that is alive out of it; for the end of a start.

    Modules, tokenizer and configuration are hundreds of thousands of objects: a full collection would walk all of them
    and hold up every stream meanwhile.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(_NUM_NEW_OBJECTS)
