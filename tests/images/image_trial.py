"""What an image must be once it is built: small, without tools, and able to run without rights."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from images.root_file_system import Confinement, command_in
from images.stage_trial import Image

_TOOLS = ("gcc", "cc", "make", "git", "curl", "wget", "strip", "ld", "pip", "pip3")
"""None of them may be on an image's PATH."""

_IS_CONFINED = """
import os, sys
assert (os.getuid(), os.getgid(), os.getgroups()) == ({uid}, {gid}, []), (os.getuid(), os.getgid(), os.getgroups())
assert "CapEff:\\t0000000000000000" in open("/proc/self/status").read()
for folder in ("/", "/opt/baton", "/models"):
    try:
        open(folder + "/written", "w")
    except OSError as error:
        continue
    sys.exit(folder + " can be written")
open("/tmp/written", "w").close()
"""


class Size(NamedTuple):
    """Size of an image, in 10^6 bytes."""

    packages: float
    """Its virtual environment."""
    added: float
    """All files that it has beyond its base."""
    compressed: float
    """The same as gzip makes it, which is what a machine pulls."""


def run_unprivileged(image: Image, command: Sequence[str], *, timeout_seconds: float = 120.0) -> str:
    """Return what a command prints in an image, as its user, without capabilities, on a read-only root.

    Raises:
        subprocess.CalledProcessError: If it fails.
    """
    done = subprocess.run(
        command_in(image.root, command, Confinement(user=image.user, is_read_only=True), work_dir=image.work_dir),
        env=image.environment,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=timeout_seconds,
    )
    return done.stdout


def check_confined(image: Image) -> None:
    """Check that the image's user has no rights and can write to /tmp alone.

    Raises:
        subprocess.CalledProcessError: If not; what it could do is printed.
    """
    uid, gid = image.user.split(":")
    run_unprivileged(image, ["python", "-c", _IS_CONFINED.format(uid=uid, gid=gid)])


def failing_imports(image: Image) -> Mapping[str, Sequence[str]]:
    """Return the imports of Baton's code that fail in an image, with the files that hold them."""
    script = Path(__file__).with_name("closure.py").read_text("utf-8")
    (folder,) = image.root.glob("opt/baton/lib/python3.*/site-packages/baton")
    place = f"/{folder.relative_to(image.root)}"
    found: dict[str, list[str]] = json.loads(run_unprivileged(image, ["python", "-c", script, place]).splitlines()[-1])
    return found


def tools_in(image: Image) -> list[str]:
    """Return the tools of builds that lie on the image's PATH; the image of a base brings some of its own."""
    folders = [image.root / part.lstrip("/") for part in image.environment["PATH"].split(":")]
    return [name for name in _TOOLS if any(os.path.lexists(folder / name) for folder in folders)]


def size_of(image: Image, base: Path) -> Size:
    """Return an image's size beyond its base."""
    known = set(_files(base))
    added = [path for path in _files(image.root) if path not in known]
    packages = sum(size for path, size in _sizes(image.root, added).items() if path.startswith("opt/baton/"))
    total = sum(_sizes(image.root, added).values())
    return Size(packages / 1e6, total / 1e6, _compressed_bytes(image.root, added) / 1e6)


def _files(root: Path) -> Iterator[str]:
    for folder, _, names in os.walk(root):
        for name in names:
            yield os.path.relpath(os.path.join(folder, name), root)


def _sizes(root: Path, paths: Sequence[str]) -> Mapping[str, int]:
    return {path: os.lstat(root / path).st_size for path in paths}


def _compressed_bytes(root: Path, paths: Sequence[str]) -> int:
    """Return the size of a layer of files: headers and contents in one stream, at the level that builders use."""
    counter = _Counter()
    with gzip.GzipFile(fileobj=counter, mode="wb", compresslevel=6, mtime=0) as stream:
        for path in paths:
            stream.write(path.encode("utf-8").ljust(512, b"\0"))
            if not (root / path).is_symlink():
                stream.write((root / path).read_bytes())
    return counter.num_bytes


class _Counter:
    """A file that keeps the number of bytes alone."""

    def __init__(self) -> None:
        self.num_bytes = 0

    def write(self, data: bytes) -> int:
        self.num_bytes += len(data)
        return len(data)

    def flush(self) -> None:
        pass
