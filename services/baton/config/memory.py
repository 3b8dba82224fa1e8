"""How much memory this process may use: that of the machine, within the limit of its container."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import psutil

from baton.config.control_groups import GROUPS, OWN_GROUPS, group_folders, words_of


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
    """Return what the narrowest bound leaves.

    Args:
        groups: Where control groups are mounted, of version 2 or 1.
        own_groups: File that names those of this process.
    """
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
