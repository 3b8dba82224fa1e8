"""How a kernel is compiled: kept on disk where a folder for it can be written, else compiled at each start.

numba takes machine code from its folder as long as the file of a kernel is the same. Kernels hold code of other files
too, so there is a folder for each state of all of them. Of processes that start together one compiles a kernel, and the
others take it from there.
"""

from __future__ import annotations

import fcntl
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import cache, partial
from hashlib import blake2b
from pathlib import Path
from typing import Any

from numba import cfunc, config, njit

from baton.engine.runners.torch.ops.cpu.numba_kernels.numbers import FAST

log = logging.getLogger(__name__)
_LONGEST_WAIT_SECONDS = 60.0
"""For another process to compile: one that was stopped meanwhile must not keep others from starting."""
_COMPILING = threading.RLock()
"""Held by the thread that compiles: numba lets one at a time, and it must not wait for another's file meanwhile."""
_OPTIONS: dict[str, Any] = {"nogil": True, "fastmath": FAST, "error_model": "numpy"}


def kernel(function: Any) -> Any:
    """Return a function, compiled when it is first called with some kinds of arguments.

    The machine code is kept in `NUMBA_CACHE_DIR`, beside the source or in the user's cache, whichever can be written.
    """
    compiled = _kept(njit, function)  # compiles, or takes from the folder, when it knows the kinds of arguments
    compiled.compile = _in_turn(compiled.compile, function)
    return compiled


def native(signature: Any) -> Callable[[Any], Any]:
    """Return a decorator that compiles a function at once, as one that has an `address` and takes pointers."""
    return lambda function: _in_turn(partial(_kept, partial(cfunc, signature)), function)(function)


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


def _in_turn(compiling: Callable[..., Any], function: Any) -> Callable[..., Any]:
    """Return what compiles a function while no other process does."""

    def compile_in_turn(*arguments: Any) -> Any:
        _use_folder_of_sources()
        with _turn_of(function):
            return compiling(*arguments)

    return compile_in_turn


@contextmanager
def _turn_of(function: Any) -> Iterator[None]:
    """Wait while another process compiles a function. It may wait for those that it calls, they never for it."""
    with _COMPILING, ExitStack() as stack:
        with suppress(OSError):  # no folder
            Path(config.CACHE_DIR).mkdir(parents=True, exist_ok=True)
            path = Path(config.CACHE_DIR, f"{function.__module__}.{function.__name__}.lock")
            descriptor = stack.enter_context(path.open("ab")).fileno()
            latest = time.monotonic() + _LONGEST_WAIT_SECONDS
            while not _took_lock(descriptor) and time.monotonic() < latest:
                time.sleep(0.05)
        yield


def _took_lock(descriptor: int) -> bool:
    with suppress(BlockingIOError):
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    return False


@cache
def _tell_that_nothing_is_kept(cause: str) -> None:
    advice = "kernels are compiled at each start; NUMBA_CACHE_DIR names a folder that keeps them"
    log.warning("compiled_not_kept cause=%r advice=%r", cause, advice)
