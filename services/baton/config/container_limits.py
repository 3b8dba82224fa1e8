"""How many cores and how much memory this process may use: the machine's, within affinity and control groups.

Control groups, of version 2 or 1, are what bounds a container, a pod, or a service of systemd.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import psutil

GROUPS = Path("/sys/fs/cgroup")
"""Where they are mounted."""
OWN_GROUPS = Path("/proc/self/cgroup")
"""Names those of this process."""


def group_folders(controller: str, groups: Path = GROUPS, own_groups: Path = OWN_GROUPS) -> Iterator[Path]:
    """Yield the folders of this process's groups and of those around them; within a container, its own is the mount.

    `controller` is one such as "cpu"; of version 1 only its groups count.
    """
    yield from (groups, groups / controller)
    for line in _lines(own_groups):
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        own = (groups / controller if controllers else groups) / path.strip("/")
        yield from (folder for folder in (own, *own.parents) if folder.is_relative_to(groups))


def words_of(path: Path) -> list[str]:
    """Return the words of a file of a group; none where there is no such file."""
    return [word for line in _lines(path) for word in line.split()]


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8").splitlines()
    except OSError:
        return []


class Cores(NamedTuple):
    """Cores that a process may use."""

    num_cores: int
    """1 or more."""
    cause: str
    """What bounds them, for people."""


def usable_cores(groups: Path = GROUPS, own_groups: Path = OWN_GROUPS) -> Cores:
    """Return what the narrowest bound leaves; part of a core counts as one."""
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


class Memory(NamedTuple):
    """Main memory that a process may use."""

    total_bytes: int
    free_bytes: int
    """What can be had without swapping: unused, or taken by files that can be read again."""


def machine_memory() -> Memory:
    """Return the memory of the whole machine: a GPU that has none of its own takes of it, whatever containers may."""
    machine = psutil.virtual_memory()
    return Memory(int(machine.total), int(machine.available))


def usable_memory(groups: Path = GROUPS, own_groups: Path = OWN_GROUPS) -> Memory:
    """Return what the narrowest bound leaves."""
    total, free = machine_memory()
    for folder in group_folders("memory", groups, own_groups):
        limit = _number(folder, "memory.max", "memory.limit_in_bytes")
        used = _number(folder, "memory.current", "memory.usage_in_bytes")
        if limit is not None and used is not None:
            total, free = min(total, limit), min(free, max(0, limit - used + _cached_bytes(folder)))
    return Memory(total, free)


def _number(folder: Path, *names: str) -> int | None:
    """Return the number in the first of some files; None where there is none, or it says "max"."""
    words = [word for name in names for word in words_of(folder / name)]
    return int(words[0]) if words and words[0].isdigit() else None


def _cached_bytes(folder: Path) -> int:
    """Return what a group's usage counts for files, which the kernel drops at need; shared memory is none.

    Version 1 has the sum over a group and those within it under names of their own.
    """
    words = words_of(folder / "memory.stat")
    counts = dict(zip(words[::2], words[1::2], strict=False))
    return sum(int(counts.get(f"total_{name}", counts.get(name, "0"))) for name in ("active_file", "inactive_file"))
