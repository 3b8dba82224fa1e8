"""`baton fetch`: brings a model's archive to this machine, checks its digest, and unpacks it."""

from __future__ import annotations

import hashlib
import shutil
import sys
import tarfile
import tempfile
import urllib.error
import urllib.request
from pathlib import Path
from typing import Annotated, BinaryIO

import typer

from baton.errors import BatonError, ConfigurationError

_CHUNK_BYTES = 1 << 20
_READ_TIMEOUT_SECONDS = 60.0
_SHA256_DIGITS = 64


class FetchError(BatonError):
    """An archive could not be brought, or is not the one that was asked for."""

    reason = "FETCH_FAILED"


def command(
    url: Annotated[str, typer.Argument(help="Address of a tar archive (plain, gzip, bzip2 or xz) of a model folder.")],
    sha256: Annotated[str, typer.Option(help="SHA-256 of the archive, 64 hexadecimal digits.")],
    into: Annotated[Path, typer.Option(help="Folder that shall hold the model; it must not exist or be empty.")],
) -> None:
    """Fetch a model folder as a tar archive whose digest is known."""
    digest = sha256.lower()
    if len(digest) != _SHA256_DIGITS or any(letter not in "0123456789abcdef" for letter in digest):
        raise ConfigurationError(f"--sha256: expected 64 hexadecimal digits, got {sha256!r}")
    if not url.startswith(("https://", "http://")):
        raise ConfigurationError(f"URL: expected one that begins with https:// or http://, got {url!r}")
    if into.exists() and any(into.iterdir()):
        if (into / "config.json").is_file():
            print(f"{into} holds a model already", file=sys.stderr)
            return
        raise ConfigurationError(f"--into: {into} is not empty")
    fetch(url, digest, into)


def fetch(url: str, sha256: str, into: Path) -> None:
    """Fetch an archive, check it, and unpack it.

    `into` appears only as a whole: a broken transfer, a wrong digest or a full disk leaves no half of a model.

    Args:
        url: Where the archive is.
        sha256: Its digest, 64 lower-case hexadecimal digits.
        into: Folder to make; its parent exists or is made. A folder at the archive's top that holds all is left out.

    Raises:
        FetchError: If the archive cannot be read, has another digest, is no tar archive, or names files outside of it.
    """
    into.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{into.name}-", dir=into.parent) as workspace:
        archive, unpacked = Path(workspace, "archive"), Path(workspace, "unpacked")
        with archive.open("wb") as target:
            actual = _download(url, target)
        if actual != sha256:
            raise FetchError(f"{url} has SHA-256 {actual}, expected {sha256}")
        try:
            with tarfile.open(archive) as tar:
                tar.extractall(unpacked, filter="data")
        except (tarfile.TarError, OSError) as error:
            raise FetchError(f"{url} cannot be unpacked: {error}") from error
        archive.unlink()
        if into.exists():
            into.rmdir()
        shutil.move(_model_folder(unpacked, url), into)


def _download(url: str, target: BinaryIO) -> str:
    """Write what a URL gives; return its SHA-256."""
    digest = hashlib.sha256()
    try:
        with urllib.request.urlopen(url, timeout=_READ_TIMEOUT_SECONDS) as response:  # noqa: S310 - checked by `command`
            while chunk := response.read(_CHUNK_BYTES):
                digest.update(chunk)
                target.write(chunk)
            missing = response.length
    except (urllib.error.URLError, OSError, ValueError) as error:
        raise FetchError(f"{url} cannot be read: {error}") from error
    if missing:
        raise FetchError(f"{url} ended {missing} bytes early")
    return digest.hexdigest()


def _model_folder(unpacked: Path, url: str) -> Path:
    """Return the folder that holds config.json: the archive's top, or the one folder there."""
    folders = (unpacked, *(path for path in unpacked.iterdir() if path.is_dir()))
    found = next((folder for folder in folders if (folder / "config.json").is_file()), None)
    if found is None:
        raise FetchError(f"{url} holds no model folder: it has no config.json")
    return found
