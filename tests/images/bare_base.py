"""A bare root file system of the Debian release and Python version that the images' base has, from Debian's archive."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

_PACKAGES = ("ca-certificates", "netbase", "tzdata", "python3", "python3-venv", "libpython3-dev")
"""What python:X-slim-RELEASE adds to Debian, as far as builds and services need it."""


class BaseError(RuntimeError):
    """No base can be made here that stands for the pinned one."""


def make_base(image: str, folder: Path) -> None:
    """Make a root file system that stands in for an image python:X.Y.Z-slim-RELEASE, by mmdebstrap or debootstrap.

    Raises:
        BaseError: If the image is another one, neither tool is installed, or the release has another Python.
        subprocess.CalledProcessError: If the tool fails.
    """
    match = re.fullmatch(r"python:(\d+\.\d+)\.\d+-slim-(\w+)", image)
    if match is None:
        raise BaseError(f"{image}: expected python:X.Y.Z-slim-RELEASE")
    version, release = match.groups()
    packages = ",".join(_PACKAGES)
    if shutil.which("mmdebstrap"):
        command = ["mmdebstrap", "--variant=minbase", f"--include={packages}", release, str(folder)]
    elif shutil.which("debootstrap"):
        command = ["debootstrap", "--variant=minbase", f"--include={packages}", release, str(folder)]
    else:
        raise BaseError("neither mmdebstrap nor debootstrap is installed: apt-get install mmdebstrap")
    subprocess.run(command, check=True)
    shutil.rmtree(folder / "var" / "cache" / "apt", ignore_errors=True)
    shutil.rmtree(folder / "var" / "lib" / "apt" / "lists", ignore_errors=True)
    name_python(folder, version)


def name_python(root: Path, version: str) -> None:
    """Give Debian's Python the name and place that it has in the pinned image, /usr/local/bin/python.

    Raises:
        BaseError: If the release has another version.
    """
    interpreter = root / "usr" / "bin" / f"python{version}"
    if not interpreter.exists():
        raise BaseError(f"{root}: its Debian has no Python {version}")
    for name in ("python", "python3"):
        link = root / "usr" / "local" / "bin" / name
        if not link.is_symlink():
            link.symlink_to(f"/usr/bin/{interpreter.name}")
