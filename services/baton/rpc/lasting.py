"""Keeps the garbage collector away from what a process has loaded once and for all."""

from __future__ import annotations

import gc


def keep_what_is_loaded() -> None:
    """Collect once, then leave everything that is alive out of later collections; for the end of a start.

    Modules, tokenizer and configuration are hundreds of thousands of objects: a full collection would walk all of them
    and hold up every stream meanwhile.
    """
    gc.collect()
    gc.freeze()
