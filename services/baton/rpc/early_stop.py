"""What a stop signal does before a service waits for one: while it loads a model there is nothing to drain."""

from __future__ import annotations

import os
import signal
from types import FrameType

_FIRST_PROCESS_ID = 1


def end_at_early_stop(process_id: int | None = None) -> None:
    """Have SIGTERM end this process at once, until somebody waits for it.

    It does so by itself, but for the first process of a container: the kernel gives that one no signal that it has no
    handler for, and a pod that is taken away while its model loads would stay for the whole of its grace.

    Args:
        process_id: Of this process; for tests.
    """
    if (os.getpid() if process_id is None else process_id) == _FIRST_PROCESS_ID:
        signal.signal(signal.SIGTERM, _end)


def _end(number: int, _frame: FrameType | None) -> None:
    os._exit(128 + number)
