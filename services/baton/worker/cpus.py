"""How many CPUs this process may use: a container sees all of its machine's, and may have few of them."""

from __future__ import annotations

import math
import os
from pathlib import Path

_QUOTA_FILE = Path("/sys/fs/cgroup/cpu.max")


def usable_cpus(quota_file: Path = _QUOTA_FILE) -> int:
    """Return the CPUs of this process, 1 or more: those that it may run on, no more than its control group gets.

    Args:
        quota_file: `cpu.max` of the control group (version 2), e.g. "200000 100000": 2 CPUs.
    """
    affine = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        quota, period = quota_file.read_text("ascii").split()
        granted = math.ceil(int(quota) / int(period))
    except (OSError, ValueError, ZeroDivisionError):  # none, or "max": all
        return affine
    return max(1, min(affine, granted))
