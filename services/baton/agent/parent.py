"""Ties a process to its parent: a child of `baton up` ends when `baton up` is killed, however that happens."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
import time
from collections.abc import Mapping

PARENT_VARIABLE = "BATON_PARENT_PID"
"""Environment variable in which a parent that wants this gives its own process id."""

_PR_SET_PDEATHSIG = 1
_POLL_SECONDS = 1.0


def parent_environment() -> Mapping[str, str]:
    """Return the variables that tie a child to this process."""
    return {PARENT_VARIABLE: str(os.getpid())}


def die_with_parent() -> None:
    """Make this process end when its parent does, if the parent asked for that.

    Linux does so by itself (PR_SET_PDEATHSIG); elsewhere a thread compares the parent's id once a second.
    """
    parent = os.environ.pop(PARENT_VARIABLE, "")
    if not parent.isdigit():
        return
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    else:
        threading.Thread(target=_watch, args=(int(parent),), name="parent-watch", daemon=True).start()
    if os.getppid() != int(parent):
        os.kill(os.getpid(), signal.SIGKILL)


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(_POLL_SECONDS)
    os.kill(os.getpid(), signal.SIGKILL)
