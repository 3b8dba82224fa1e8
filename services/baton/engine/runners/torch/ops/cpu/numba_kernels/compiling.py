"""How a kernel is compiled: kept on disk where a folder for it can be written, else compiled at each start.

numba takes machine code from its folder as long as the file of a kernel is the same. Kernels hold code of other files
too, so there is a folder for each state of all of them.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from functools import cache, partial
from hashlib import blake2b
from pathlib import Path
from typing import Any

from numba import cfunc, config, njit

from baton.engine.runners.torch.ops.cpu.numba_kernels.numbers import FAST

log = logging.getLogger(__name__)
_OPTIONS: dict[str, Any] = {"nogil": True, "fastmath": FAST, "error_model": "numpy"}


def kernel(function: Any) -> Any:
    """Return a function, compiled when it is first called with some kinds of arguments.

    The machine code is kept in `NUMBA_CACHE_DIR`, beside the source or in the user's cache, whichever can be written.
    """
    return _kept(njit, function)


def native(signature: Any) -> Callable[[Any], Any]:
    """Return a decorator that compiles a function at once, as one that has an `address` and takes pointers."""
    return lambda function: _kept(partial(cfunc, signature), function)


def digest_of(sources: Path) -> str:
    """Return 16 hexadecimal digits that change with any Python file of a folder."""
    contents = (path.name.encode() + b"\0" + path.read_bytes() for path in sorted(sources.glob("*.py")))
    return blake2b(b"\0".join(contents), digest_size=8).hexdigest()


@cache
def _use_folder_of_sources() -> None:
    sources = Path(__file__).parent
    beside = sources / "__pycache__"
    usual = beside if os.access(beside if beside.exists() else sources, os.W_OK) else Path.home() / ".cache" / "numba"
    config.CACHE_DIR = str(Path(config.CACHE_DIR or usual) / digest_of(sources))


def _kept(compiler: Callable[..., Any], function: Any) -> Any:
    _use_folder_of_sources()
    try:
        return compiler(cache=True, **_OPTIONS)(function)
    except RuntimeError as error:  # no folder
        _tell_that_nothing_is_kept(str(error).partition(":")[2].strip())
        return compiler(**_OPTIONS)(function)


@cache
def _tell_that_nothing_is_kept(cause: str) -> None:
    advice = "kernels are compiled at each start; NUMBA_CACHE_DIR names a folder that keeps them"
    log.warning("compiled_not_kept cause=%r advice=%r", cause, advice)
