"""Which files make a model, and their digests: what a machine tells another one that wants it."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from baton.errors import InvalidFieldError
from baton.weights.model_name import SERVED_NAME

SMALL_FILES = ("*.json", "*.jinja", "*.txt", "*.model", "*.tiktoken")
"""Configuration, index of weights, tokenizer, chat template: all but the weights."""
WEIGHTS = "*.safetensors"
_INDEX = "model.safetensors.index.json"
_MOST_FILES = 10_000
_FILE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._+-]{0,254}")


class FileDigest(NamedTuple):
    """A file of a model."""

    name: str
    """In the model's folder: no path."""
    num_bytes: int
    sha256: str
    """Of its content: 64 lower-case hexadecimal digits."""


class Manifest(NamedTuple):
    """A model's files."""

    name: str
    revision: str
    """Commit of a hub's model, else a digest of the files: 40 hexadecimal digits."""
    files: tuple[FileDigest, ...]

    @property
    def num_bytes(self) -> int:
        """Return the size of all files."""
        return sum(file.num_bytes for file in self.files)

    @property
    def folder_name(self) -> str:
        """Return where a store has the model's folder, from which its name and revision can be read again."""
        owner, _, name = self.name.rpartition("/")
        return f"models--{owner}--{name}/snapshots/{self.revision}" if owner else f"{self.revision}/{name}"

    def to_json(self) -> str:
        """Return it as text."""
        return json.dumps(self._asdict())

    @classmethod
    def from_json(cls, text: str) -> Manifest:
        """Return what `to_json` wrote."""
        values = json.loads(text)
        return cls(values["name"], values["revision"], tuple(FileDigest(*file) for file in values["files"]))


def make_manifest(name: str, revision: str, files: Sequence[FileDigest]) -> Manifest:
    """Return a manifest; what comes from another machine is checked.

    `name`: under which the model is served. `revision`: commit of a hub's; empty: the files' digest. `files`: in any
    order. Raises InvalidFieldError if a name could lead out of a folder, is no file of a model, or is there twice.
    """
    if not SERVED_NAME.fullmatch(name):
        raise InvalidFieldError("model", f"expected a model's name, got {name[:100]!r}")
    if not 1 <= len(files) <= _MOST_FILES or len({file.name for file in files}) < len(files):
        raise InvalidFieldError("files", f"expected 1 to {_MOST_FILES} of different names, got {len(files)}")
    for file in files:
        if not _FILE_NAME.fullmatch(file.name) or not any(
            Path(file.name).match(one) for one in (*SMALL_FILES, WEIGHTS)
        ):
            raise InvalidFieldError("files.name", f"{file.name[:100]!r} is no file of a model")
        if not re.fullmatch("[0-9a-f]{64}", file.sha256) or file.num_bytes < 0:
            raise InvalidFieldError("files.sha256", f"{file.name} has no digest and size, but {file[1:]}")
    ordered = tuple(sorted(files))
    revision = revision or hashlib.sha256(repr(ordered).encode()).hexdigest()[:40]
    if not re.fullmatch("[0-9a-f]{40}", revision):
        raise InvalidFieldError("revision", f"expected 40 hexadecimal digits, got {revision[:100]!r}")
    return Manifest(name, revision, ordered)


def weight_files(folder: Path) -> Sequence[str]:
    """Return the weight files that count, or patterns of them: those of the index, where there is one."""
    index = folder / _INDEX
    if not index.is_file():
        return ("model.safetensors",) if (folder / "model.safetensors").exists() else (WEIGHTS,)
    named = set(json.loads(index.read_text()).get("weight_map", {}).values())
    return sorted(name for name in named if _FILE_NAME.fullmatch(name)) or (WEIGHTS,)  # a path could lead elsewhere


def model_files(folder: Path) -> Sequence[Path]:
    """Return the files of a folder that make its model."""
    patterns = (*SMALL_FILES, *weight_files(folder))
    return sorted({path for pattern in patterns for path in folder.glob(pattern) if path.is_file()})


def digest_of_file(path: Path, known: Mapping[str, str] | None = None) -> str:
    """Return the SHA-256 of a file; the hub's cache has it as the name of what a link leads to."""
    target = path.resolve()
    if path.is_symlink() and re.fullmatch("[0-9a-f]{64}", target.name):
        return target.name
    if found := (known or {}).get(stamp_of(path)):
        return found
    with target.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def stamp_of(path: Path) -> str:
    """Return what changes when a file does: path, size, time of its last change."""
    status = path.stat()
    return f"{path.resolve()} {status.st_size} {status.st_mtime_ns}"
