"""How a kernel is compiled: kept on disk where a folder for it can be written, else compiled at each start."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import cache, partial
from typing import Any

from numba import cfunc, njit

from baton.engine.runners.torch.compiled.numbers import FAST

log = logging.getLogger(__name__)
_OPTIONS: dict[str, Any] = {"nogil": True, "fastmath": FAST, "error_model": "numpy"}


def kernel(function: Any) -> Any:
    """Return a function, compiled when it is first called with some kinds of arguments.

    numba keeps the machine code in `NUMBA_CACHE_DIR`, beside the source or in the user's cache, whichever it can write.
    """
    return _kept(njit, function)


def native(signature: Any) -> Callable[[Any], Any]:
    """Return a decorator that compiles a function at once, as one that has an `address` and takes pointers."""
    return lambda function: _kept(partial(cfunc, signature), function)


def _kept(compiler: Callable[..., Any], function: Any) -> Any:
    try:
        return compiler(cache=True, **_OPTIONS)(function)
    except RuntimeError as error:  # no folder
        _tell_that_nothing_is_kept(str(error).partition(":")[2].strip())
        return compiler(**_OPTIONS)(function)


@cache
def _tell_that_nothing_is_kept(cause: str) -> None:
    advice = "kernels are compiled at each start; NUMBA_CACHE_DIR names a folder that keeps them"
    log.warning("compiled_not_kept cause=%r advice=%r", cause, advice)
