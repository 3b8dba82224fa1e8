"""A folder as the root file system of a process, with namespaces of its own. Needs Linux, root and `unshare`."""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

_DEVICES = ("null", "zero", "full", "random", "urandom")


@dataclass(frozen=True, slots=True)
class Confinement:
    """How a process lives in a root file system. Mounts are its own and vanish with it."""

    binds: Mapping[str, Path] = field(default_factory=dict)
    """Files and folders of this machine by their place below the root, writable."""
    user: str = ""
    """UID:GID without any capability; empty: root."""
    is_read_only: bool = False
    """Whether the root can be written by nobody; /tmp is then a memory file system, as an emptyDir would be."""


def command_in(root: Path, command: Sequence[str], confinement: Confinement, *, work_dir: str = "/") -> list[str]:
    """Return what runs a command in a root file system, in mount and process namespaces of its own.

    Args:
        root: Folder of the file system; places for mounts are made in it where they lack.
        command: With a path inside of it, or a name on its PATH.
        confinement: What the process has and may do.
        work_dir: Folder inside.
    """
    mounts = [f"mount --make-rprivate / && mount --bind {_quoted(root)} {_quoted(root)}"]
    for place, source in {**_machine_files(), **confinement.binds}.items():
        target = root / place.lstrip("/")
        _make_place(target, source)
        mounts.append(f"mount --bind {_quoted(source)} {_quoted(target)}")
    if confinement.is_read_only:
        mounts.append(f"mount -o remount,bind,ro {_quoted(root)}")
        mounts.append(f"mount -t tmpfs -o mode=1777 tmpfs {_quoted(root / 'tmp')}")
    mounts.append(f"mount -t proc proc {_quoted(root / 'proc')}")
    inside = f"exec chroot {_quoted(root)} /bin/sh -c {shlex.quote(_entry(command, work_dir, confinement.user))}"
    return ["unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-ec", "\n".join([*mounts, inside])]


def copy_tree(source: Path, target: Path) -> None:
    """Copy a root file system with owners, modes and links, below a folder that may exist.

    Raises:
        subprocess.CalledProcessError: If `cp` fails.
    """
    target.mkdir(parents=True, exist_ok=True)
    subprocess.run(["cp", "--archive", f"{source}/.", str(target)], check=True)


def _machine_files() -> Mapping[str, Path]:
    files = {f"/dev/{name}": Path("/dev", name) for name in _DEVICES}
    return files | {"/etc/resolv.conf": Path("/etc/resolv.conf"), "/etc/hosts": Path("/etc/hosts")}


def _make_place(target: Path, source: Path) -> None:
    if target.exists():
        return
    if source.is_dir():
        target.mkdir(parents=True)
    else:
        target.parent.mkdir(parents=True, exist_ok=True)
        target.touch()


def _entry(command: Sequence[str], work_dir: str, user: str) -> str:
    lowered = ""
    if user:
        uid, _, gid = user.partition(":")
        lowered = (
            f"setpriv --reuid={uid} --regid={gid} --clear-groups --no-new-privs --bounding-set=-all --inh-caps=-all "
        )
    return f"cd {shlex.quote(work_dir)} && exec {lowered}{shlex.join(command)}"


def _quoted(path: Path) -> str:
    return shlex.quote(str(path))
