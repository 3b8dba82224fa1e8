"""How a kernel is compiled: kept on disk where a folder for it can be written, else compiled at each start."""

from __future__ import annotations

import logging
from functools import cache
from typing import Any

from numba import njit

from baton.engine.runners.torch.compiled.numbers import FAST

log = logging.getLogger(__name__)
_OPTIONS: dict[str, Any] = {"nogil": True, "fastmath": FAST, "error_model": "numpy"}


def kernel(function: Any) -> Any:
    """Return a function, compiled when it is first called with some kinds of arguments.

    numba keeps the machine code in `NUMBA_CACHE_DIR`, beside the source or in the user's cache, whichever it can write.
    """
    try:
        return njit(cache=True, **_OPTIONS)(function)
    except RuntimeError as error:  # none of them
        _tell_that_nothing_is_kept(str(error).partition(":")[2].strip())
        return njit(**_OPTIONS)(function)


@cache
def _tell_that_nothing_is_kept(cause: str) -> None:
    advice = "kernels are compiled at each start; NUMBA_CACHE_DIR names a folder that keeps them"
    log.warning("compiled_not_kept cause=%r advice=%r", cause, advice)
