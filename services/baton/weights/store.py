"""Weights of one machine: files by their digests, which of them make which model, and folders of models made of links.

```
STORE/files/SHA256           a file that is whole, and whose digest was compared; or a link to one elsewhere
STORE/files/SHA256.part      one that comes: what is there is in order; who writes it holds a lock on it
STORE/models/…               folders of whole models, of links, by their names as the hub's cache has them
STORE/manifests/REVISION     what each model consists of, from before its first byte on; what none names is garbage
```

All of it is in files: any process of the machine serves what another one fetches, and what was killed goes on where it
was. A store knows files; which models compute the same is not its business.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from io import FileIO
from pathlib import Path
from typing import BinaryIO, NamedTuple

from baton.errors import ConfigurationError, NotFoundError, UnavailableError
from baton.weights.manifest import FileDigest, Manifest, digest_of_file, make_manifest, model_files, stamp_of

NOT_HERE = "WEIGHTS_NOT_HERE"
STALLED = "WEIGHTS_STALLED"
SPARE_BYTES = 1 << 30
"""Left free on a disk."""


def default_store() -> WeightStore:
    """Return the store of this machine: BATON_WEIGHTS_DIR, else beside the hub's cache."""
    cache = Path(os.environ.get("XDG_CACHE_HOME", "~/.cache"), "huggingface")
    beside = Path(os.environ.get("HF_HOME", cache), "baton")
    return WeightStore(Path(os.environ.get("BATON_WEIGHTS_DIR", beside)).expanduser())


def check_disk(model: object, folder: Path, missing_bytes: int, variable: str) -> None:
    """Check that a disk holds what is missing, and some more; raise ConfigurationError naming `variable` if not."""
    free_bytes = shutil.disk_usage(folder).free
    if missing_bytes + SPARE_BYTES > free_bytes:
        needed, spare = f"{missing_bytes / 1e9:.3g} GB", f"{SPARE_BYTES / 1e9:.2g} GB"
        raise ConfigurationError(
            f"model {model}: {needed} are missing here, and {spare} are left free, but {folder} has "
            f"{free_bytes / 1e9:.3g} GB: make room, or let {variable} name a larger disk"
        )


class FileRange(NamedTuple):
    """What of a file can be read now."""

    data: bytes
    """The next bytes; empty: none has come."""
    is_coming: bool
    """Whether somebody brings more."""


class ArrivingFile:
    """A file that comes, in order. One process at a time has it; what is there when it begins was hashed again."""

    def __init__(self, wanted: FileDigest, file: FileIO, path: Path) -> None:
        self.wanted = wanted
        self._file = file
        self._path = path
        self._digest = hashlib.file_digest(file, "sha256")
        self.num_bytes = file.tell()
        """That are there."""
        self.on_written: Callable[[int], None] = lambda _num_bytes: None
        """Told of bytes that have come; what it raises ends the transfer."""
        if self.num_bytes > wanted.num_bytes:
            self.discard()

    def write(self, data: bytes) -> int:
        """Append; another process may read it at once."""
        self._file.write(data)
        self._digest.update(data)
        self.num_bytes += len(data)
        self.on_written(len(data))
        return len(data)

    def tell(self) -> int:
        """Return how many bytes are there."""
        return self.num_bytes

    def seek(self, _offset: int) -> int:
        """Begin anew: whoever sends cannot go on within the file."""
        self.discard()
        return 0

    def truncate(self) -> int:
        """Return 0: `seek` has left nothing."""
        return 0

    def discard(self) -> None:
        """Leave nothing of it."""
        self._file.seek(0)
        self._file.truncate()
        self._digest = hashlib.sha256()
        self.num_bytes = 0

    def finish(self) -> bool:
        """Return whether it is what was wanted; then the store has it, else nothing of it is left."""
        if (self.num_bytes, self._digest.hexdigest()) != self.wanted[1:]:
            self.discard()
            return False
        os.fsync(self._file.fileno())
        self._path.replace(self._path.with_suffix(""))
        return True


class WeightStore:
    """The store in a folder, which is made when something is kept."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._files = folder / "files"
        self._manifests = folder / "manifests"
        self._digests = folder / "digests.json"
        self._elsewhere: dict[str, Path] = {}
        """Files of folders that were told, by digest: whole, but not the store's."""

    def manifests(self) -> list[Manifest]:
        """Return what models consist of that are here or come; those that were begun last are first."""
        found = [(path.stat().st_mtime_ns, path.read_text()) for path in self._manifests.glob("*.json")]
        return [Manifest.from_json(text) for _, text in sorted(found, reverse=True)]

    def manifest(self, model: str) -> Manifest | None:
        """Return that of `name[@revision]`."""
        name, _, revision = model.partition("@")
        fits = (one for one in self.manifests() if one.name == name and revision in ("", "main", one.revision))
        return next(fits, None)

    def find(self, model: str) -> Path | None:
        """Return the folder of `name[@revision]` if it is here whole."""
        manifest = self.manifest(model)
        return self.folder_of(manifest) if manifest and self.folder_of(manifest).is_dir() else None

    def folder_of(self, manifest: Manifest) -> Path:
        """Return where the folder of a model is once it is whole."""
        return self.folder / "models" / manifest.folder_name

    def path_of(self, file: FileDigest) -> Path:
        """Return where a whole file is."""
        return (self._files / file.sha256).absolute()

    def holds(self, sha256: str) -> bool:
        """Return whether a file is here whole."""
        return (self._files / sha256).exists()

    def knows(self, sha256: str) -> bool:
        """Return whether a file is here, whole or not."""
        return self.holds(sha256) or sha256 in self._elsewhere or self._part(sha256).exists()

    def begin(self, manifest: Manifest, elsewhere: Mapping[str, Path]) -> None:
        """Keep what a model consists of, before its first byte.

        `elsewhere` are whole files of it that lie elsewhere on this machine, by digest. Raises ConfigurationError if
        the disk does not hold what is missing.
        """
        for folder in (self._files, self._manifests):
            folder.mkdir(parents=True, exist_ok=True)
        for sha256, path in elsewhere.items():
            with suppress(FileExistsError):
                (self._files / sha256).symlink_to(path.resolve())
        missing_bytes = manifest.num_bytes - sum(self.held_bytes(file) for file in manifest.files)
        check_disk(f"{manifest.name}@{manifest.revision}", self._files, missing_bytes, "BATON_WEIGHTS_DIR")
        kept = self._manifests / f"{manifest.revision}.json"
        kept.with_suffix(".new").write_text(manifest.to_json())
        kept.with_suffix(".new").replace(kept)

    def held_bytes(self, file: FileDigest) -> int:
        """Return how much of a file is here."""
        if not self.holds(file.sha256):
            with suppress(FileNotFoundError):
                return min(file.num_bytes, self._part(file.sha256).stat().st_size)
        return file.num_bytes if self.holds(file.sha256) else 0  # its part may have become the whole in between

    def finish(self, manifest: Manifest) -> Path:
        """Make the folder of a model whose files are all here; return it."""
        folder = self.folder_of(manifest)
        if not folder.is_dir():
            unfinished = folder.with_name(f".{folder.name}-{os.getpid()}")
            shutil.rmtree(unfinished, ignore_errors=True)
            unfinished.mkdir(parents=True)
            for file in manifest.files:
                (unfinished / file.name).symlink_to(self.path_of(file))
            with suppress(OSError):  # another process was faster
                unfinished.rename(folder)
        return folder

    @contextmanager
    def receive(self, file: FileDigest, *, waits: bool) -> Iterator[ArrivingFile | None]:
        """Give a file to write, or None if it is here; what has come of it stays.

        It `waits` while another process of this machine brings the file. Raises UnavailableError if one does, and is
        not waited for.
        """
        if self.holds(file.sha256):
            yield None
            return
        with self._part(file.sha256).open("ab+", buffering=0) as part:
            try:
                fcntl.flock(part, fcntl.LOCK_EX | (0 if waits else fcntl.LOCK_NB))
            except BlockingIOError as error:
                raise UnavailableError(f"{file.name} comes by another process", reason=STALLED) from error
            if self.holds(file.sha256):  # since it was looked at
                self._part(file.sha256).unlink(missing_ok=True)
                yield None
                return
            part.seek(0)
            yield ArrivingFile(file, part, self._part(file.sha256))

    def adopt(self, name: str, revision: str, folder: Path) -> Manifest:
        """Return what the model in any folder consists of; its files can be read from then on. Nothing is copied.

        Files are hashed that the hub's cache has no digest of, once while they stay as they are.
        """
        known: dict[str, str] = {}
        with suppress(OSError, ValueError):
            known = json.loads(self._digests.read_text())
        paths = model_files(folder)
        digests = {path: digest_of_file(path, known) for path in paths}
        self._elsewhere |= {digest: path for path, digest in digests.items()}
        news = {stamp_of(path): digest for path, digest in digests.items()}
        if not news.items() <= known.items():
            with suppress(OSError):  # where nothing can be kept it is computed again
                self.folder.mkdir(parents=True, exist_ok=True)
                unfinished = self._digests.with_suffix(f".{os.getpid()}")
                unfinished.write_text(json.dumps({**known, **news}))
                unfinished.replace(self._digests)
        files = [FileDigest(path.name, path.stat().st_size, digests[path]) for path in paths]
        return make_manifest(name, revision, files)

    @contextmanager
    def open(self, sha256: str) -> Iterator[BinaryIO]:
        """Open a file that is here, or comes; raise NotFoundError if it does neither."""
        for path in (self._files / sha256, self._part(sha256), self._elsewhere.get(sha256)):
            with suppress(FileNotFoundError):
                if path is not None:
                    file = path.open("rb", buffering=0)
                    break
        else:
            raise NotFoundError(f"no file {sha256} is here", reason=NOT_HERE)
        with file:
            yield file

    def remove(self, model: str) -> bool:
        """Forget `name[@revision]`; return whether it was known. `collect` gives the disk back."""
        manifest = self.manifest(model)
        if manifest is None:
            return False
        (self._manifests / f"{manifest.revision}.json").unlink(missing_ok=True)
        shutil.rmtree(self.folder_of(manifest), ignore_errors=True)
        return True

    def collect(self) -> int:
        """Delete files that no model names, and no process brings; return their bytes."""
        named = {file.sha256 for manifest in self.manifests() for file in manifest.files}
        num_bytes = 0
        for path in self._files.glob("*"):
            if path.name.removesuffix(".part") not in named and not _is_coming(path):
                num_bytes += 0 if path.is_symlink() else path.stat().st_size
                path.unlink()
        return num_bytes

    def _part(self, sha256: str) -> Path:
        return self._files / f"{sha256}.part"


def read_range(file: BinaryIO, begin: int, num_bytes: int) -> FileRange:
    """Return the next bytes of a file that is here or comes."""
    if data := os.pread(file.fileno(), num_bytes, begin):
        return FileRange(data, is_coming=True)
    is_coming = _is_locked(file)
    return FileRange(os.pread(file.fileno(), num_bytes, begin), is_coming)  # its writer may have ended in between


def _is_locked(file: BinaryIO) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        fcntl.flock(file, fcntl.LOCK_UN)
    except BlockingIOError:
        return True
    return False


def _is_coming(path: Path) -> bool:
    with suppress(OSError), path.open("rb", buffering=0) as file:
        return _is_locked(file)
    return False
