"""How many cores this process may use: those of the machine, of its affinity, of its container's quota."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from baton.config.control_groups import GROUPS, OWN_GROUPS, group_folders, words_of


class Cores(NamedTuple):
    """Cores that a process may use."""

    num_cores: int
    """1 or more."""
    cause: str
    """What bounds them, for people."""


def usable_cores(groups: Path = GROUPS, own_groups: Path = OWN_GROUPS) -> Cores:
    """Return what the narrowest bound leaves; part of a core counts as one.

    Args:
        groups: Where control groups are mounted, of version 2 or 1.
        own_groups: File that names those of this process.
    """
    num_all = os.cpu_count() or 1
    chosen = Cores(num_all, f"{num_all} in the machine")
    if hasattr(os, "sched_getaffinity") and (num_allowed := len(os.sched_getaffinity(0))) < num_all:
        chosen = Cores(num_allowed, f"{num_allowed} of {num_all} by affinity")
    quota = min(_quotas(groups, own_groups), default=float(num_all))
    if math.ceil(quota) < chosen.num_cores:
        chosen = Cores(max(1, math.ceil(quota)), f"{quota:g} of {num_all} by the quota of the control group")
    return chosen


def _quotas(groups: Path, own_groups: Path) -> Iterator[float]:
    """Yield the cores that each group of this process, and each around it, may use, where it has a quota."""
    for folder in group_folders("cpu", groups, own_groups):
        words = [
            *words_of(folder / "cpu.max"),
            *words_of(folder / "cpu.cfs_quota_us"),
            *words_of(folder / "cpu.cfs_period_us"),
        ]
        if len(words) == 2 and all(word.isdigit() for word in words) and int(words[1]):  # else "max", or -1: none
            yield int(words[0]) / int(words[1])
