"""What the container that fetches a model runs: brings an archive, checks its digest, and unpacks it.

python -c SCRIPT URL SHA256 FOLDER
"""

import hashlib
import shutil
import sys
import tarfile
import tempfile
import urllib.request
from pathlib import Path

CHUNK_BYTES = 1 << 20
READ_SECONDS = 60.0


def fetch(url, sha256, into):
    """Fetch an archive, check it, and unpack it.

    `into` appears only as a whole: a broken transfer, a wrong digest or a full disk leaves no half of a model.

    Args:
        url: Where the archive is.
        sha256: Its digest, 64 lower-case hexadecimal digits.
        into: Folder to make; its parent exists or is made. A folder at the archive's top that holds all is left out.

    Raises:
        SystemExit: If the archive cannot be read, has another digest, is no tar archive, or names files outside of it.
    """
    into.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{into.name}-", dir=into.parent) as workspace:
        archive, unpacked = Path(workspace, "archive"), Path(workspace, "unpacked")
        with archive.open("wb") as target:
            actual = download(url, target)
        if actual != sha256:
            raise SystemExit(f"{url} has SHA-256 {actual}, expected {sha256}")
        try:
            with tarfile.open(archive) as tar:
                tar.extractall(unpacked, filter="data")
        except (tarfile.TarError, OSError) as error:
            raise SystemExit(f"{url} cannot be unpacked: {error}") from error
        archive.unlink()
        if into.exists():
            into.rmdir()
        shutil.move(model_folder(unpacked, url), into)


def download(url, target):
    """Write what a URL gives; return its SHA-256."""
    digest = hashlib.sha256()
    try:
        with urllib.request.urlopen(url, timeout=READ_SECONDS) as response:
            while chunk := response.read(CHUNK_BYTES):
                digest.update(chunk)
                target.write(chunk)
            missing = response.length
    except (OSError, ValueError) as error:
        raise SystemExit(f"{url} cannot be read: {error}") from error
    if missing:
        raise SystemExit(f"{url} ended {missing} bytes early")
    return digest.hexdigest()


def model_folder(unpacked, url):
    """Return the folder that holds config.json: the archive's top, or the one folder there."""
    folders = (unpacked, *(path for path in unpacked.iterdir() if path.is_dir()))
    found = next((folder for folder in folders if (folder / "config.json").is_file()), None)
    if found is None:
        raise SystemExit(f"{url} holds no model folder: it has no config.json")
    return found


if __name__ == "__main__":
    wanted, digest, folder = sys.argv[1], sys.argv[2], Path(sys.argv[3])
    if (folder / "config.json").is_file():
        print(f"{folder} holds a model already")
    else:
        fetch(wanted, digest, folder)
