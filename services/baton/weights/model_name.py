"""What names a model: a folder, or `org/name[@revision]` of a hub, whose files lie in the hub's cache.

The commit of a hub's model is part of its folder (`models--org--name/snapshots/COMMIT`, which other programs share), so
that whoever has the folder knows both.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

from baton.errors import ConfigurationError

_PART = r"[A-Za-z0-9][A-Za-z0-9._-]{0,95}"
HUB_NAME = re.compile(rf"(?:hf://)?({_PART}/{_PART})(?:@([A-Za-z0-9._/-]{{1,255}}))?")
SERVED_NAME = re.compile(rf"(?:{_PART}/)?{_PART}")
"""A name that can stand in a path."""
_COMMIT = re.compile(r"[0-9a-f]{40}")
_CACHE_FOLDER = re.compile(r"models--(.+?)--(.+)")


class HubName(NamedTuple):
    """A model of a hub."""

    repository: str
    revision: str

    def __str__(self) -> str:
        return f"{self.repository}@{self.revision}"


def parse_model(text: str) -> HubName | Path:
    """Return what a user means by `--model`, or raise ConfigurationError; a folder wins over a hub's name."""
    path = Path(text).expanduser()
    if path.is_dir():
        return path
    if path.is_file():
        problem = "it is a file; give the folder with config.json, tokenizer and *.safetensors files (GGUF is not read)"
        raise ConfigurationError(f"model {text}: {problem}")
    if found := HUB_NAME.fullmatch(text):
        return HubName(found[1], found[2] or "main")
    raise ConfigurationError(f"model {text}: there is no such folder, and it is no `org/name[@revision]` of a hub")


def is_folder(text: str) -> bool:
    """Return whether a text names a folder of this machine."""
    return Path(text).expanduser().is_dir()


def served_name_of(folder: Path) -> str:
    """Return the name of the model in a folder: `org/name` of a hub's, else the folder's own name."""
    resolved = folder.resolve()
    if resolved.parent.name == "snapshots" and (found := _CACHE_FOLDER.fullmatch(resolved.parents[1].name)):
        return f"{found[1]}/{found[2]}"
    return resolved.name


def hub_name_of(folder: Path) -> str:
    """Return `org/name@commit` of the model in a folder; empty: it is no hub's."""
    return f"{served_name_of(folder)}@{commit}" if (commit := revision_of(folder)) else ""


def revision_of(folder: Path) -> str:
    """Return the commit of a hub's model in its cache, from its folder; empty: it is another folder."""
    resolved = folder.resolve()
    return resolved.name if resolved.parent.name == "snapshots" and _COMMIT.fullmatch(resolved.name) else ""
