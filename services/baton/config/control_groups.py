"""The control groups of this process, of version 2 or 1: what bounds a container, a pod, or a service of systemd."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

GROUPS = Path("/sys/fs/cgroup")
"""Where they are mounted."""
OWN_GROUPS = Path("/proc/self/cgroup")
"""Names those of this process."""


def group_folders(controller: str, groups: Path = GROUPS, own_groups: Path = OWN_GROUPS) -> Iterator[Path]:
    """Yield the folders of this process's groups and of those around them; within a container, its own is the mount.

    Args:
        controller: Such as "cpu"; of version 1 only its groups count.
        groups: Where control groups are mounted.
        own_groups: File that names those of this process.
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
