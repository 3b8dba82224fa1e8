"""Brings a model of a hub to this machine, into the cache that all programs of the hub's library share.

HF_HOME, HF_ENDPOINT, HF_TOKEN and HF_HUB_OFFLINE mean what they mean everywhere. A revision is resolved once, to a
commit; of a commit that is here whole nothing is asked. What will be fetched, and whether the disk holds it, is known
before the first byte of it; what has come stays, and the next attempt goes on from there.
"""

from __future__ import annotations

import json
import logging
import os
import re
import shutil
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from pydantic import BeforeValidator

from baton.errors import ConfigurationError
from baton.installation import install_line
from baton.weights.model_name import HubName, parse_model

log = logging.getLogger(__name__)

_SMALL_FILES = ("*.json", "*.jinja", "*.txt", "*.model", "*.tiktoken")
"""Configuration, index of weights, tokenizer, chat template: all but the weights."""
_INDEX = "model.safetensors.index.json"
_WEIGHTS = "*.safetensors"
_OTHER_WEIGHTS = (".gguf", ".bin", ".pth", ".pt", ".onnx")
_COMMIT = re.compile(r"[0-9a-f]{40}")
_SPARE_BYTES = 1 << 30
"""Left free on the disk of the cache."""
_PROGRESS_SECONDS = 0.2
_LOG_SECONDS = 10.0


class FetchProgress(NamedTuple):
    """How far a fetch has come."""

    name: HubName
    """Model, at the commit that its revision is."""
    done_bytes: int
    """That are here."""
    total_bytes: int
    """Of all files."""


def model_folder(text: str, on_progress: Callable[[FetchProgress], None] | None = None) -> Path:
    """Return the folder of a model that a user names, fetched first if it is a hub's and not here.

    Args:
        text: Folder, or `org/name[@revision]`.
        on_progress: Told of what comes, some times a second, from any thread.

    Raises:
        ConfigurationError: If there is none, or it cannot be fetched; the message has the remedy.
    """
    name = parse_model(text)
    return fetch_model(name, on_progress or _ignore) if isinstance(name, HubName) else name


class CachedModel(NamedTuple):
    """A model of a hub that lies here."""

    name: HubName
    """With its commit."""
    num_bytes: int
    """On disk."""
    folder: Path
    """What a node takes."""


def cached_models() -> list[CachedModel]:
    """Return the models with safetensors in the hub's cache of this machine, by name."""
    try:
        from huggingface_hub import scan_cache_dir
        from huggingface_hub.errors import CacheNotFound
    except ImportError as error:
        raise ConfigurationError(f"the hub's cache is read by huggingface_hub: {install_line('worker')}") from error
    try:
        repositories = scan_cache_dir().repos
    except CacheNotFound:
        return []
    found = [
        CachedModel(HubName(each.repo_id, revision.commit_hash), revision.size_on_disk, revision.snapshot_path)
        for each in repositories
        for revision in each.revisions
        if any(file.file_name.endswith(".safetensors") for file in revision.files)
    ]
    return sorted(found)


def _folder_of_setting(value: object) -> Path:
    """Return the folder that a setting names; how a fetch goes on is logged."""
    told_at = time.monotonic()

    def tell(progress: FetchProgress) -> None:
        nonlocal told_at
        if progress.done_bytes == progress.total_bytes or time.monotonic() - told_at > _LOG_SECONDS:
            told_at = time.monotonic()
            log.info("weights_fetched model=%s bytes=%d of=%d", *progress)

    try:
        return model_folder(str(value), tell)
    except ConfigurationError as error:
        raise ValueError(error.message) from error


ModelFolder = Annotated[Path, BeforeValidator(_folder_of_setting)]
"""A setting that names a model: its folder, or `org/name[@revision]` of a hub, which is fetched if it is not here."""


def fetch_model(name: HubName, on_progress: Callable[[FetchProgress], None]) -> Path:
    """Bring a model's files that are not here; return their folder.

    Raises:
        ConfigurationError: If the hub does not give them, or the disk does not hold them.
    """
    try:
        import huggingface_hub
        from huggingface_hub import constants, errors
    except ImportError as error:
        raise ConfigurationError(
            f"model {name}: a hub is asked by huggingface_hub: {install_line('worker')}"
        ) from error
    if "HF_ENDPOINT" in os.environ:
        constants.HF_HUB_DISABLE_XET = True  # its data would come from elsewhere than the mirror
    hub = _Hub(name, huggingface_hub.snapshot_download)
    try:
        if _COMMIT.fullmatch(name.revision) or constants.HF_HUB_OFFLINE:
            with suppress(errors.LocalEntryNotFoundError):
                return hub.local()
        return hub.fetch(on_progress)
    except errors.DryRunError as error:  # the hub does not even say what it has
        cause = error.__cause__ if isinstance(error.__cause__, Exception) else error
        with suppress(errors.LocalEntryNotFoundError):
            folder = hub.local()
            log.warning("hub_away model=%s commit=%s cause=%s", name, folder.name, _told(cause, name))
            return folder
        raise ConfigurationError(f"model {name}: {_told(cause, name)}") from error
    except OSError as error:  # errors of the hub's library are
        raise ConfigurationError(f"model {name}: {_told(error, name)}") from error


class _Hub:
    """One model of the hub."""

    def __init__(self, name: HubName, download: Callable[..., Any]) -> None:
        self._name = name
        self._download = download

    def local(self) -> Path:
        """Return the folder if all is here, without asking anybody."""
        found = Path(self._call(_SMALL_FILES, local_files_only=True))
        return Path(self._call((*_SMALL_FILES, *self._weights_of(found)), local_files_only=True))

    def fetch(self, on_progress: Callable[[FetchProgress], None]) -> Path:
        """Bring what is not here; return the folder."""
        listed = self._call(None, dry_run=True)
        commit = listed[0].commit_hash if listed else self._name.revision
        name = self._name._replace(revision=commit)
        self._name = name
        files = [file.filename for file in listed]
        if not any(Path(file).match(_WEIGHTS) and "/" not in file for file in files):
            others = sorted(file for file in files if file.endswith(_OTHER_WEIGHTS))
            found = f", only {others[0]}" if others else ""
            raise ConfigurationError(f"model {name}: no *.safetensors file{found}: choose one that has them")
        folder = Path(self._call(_SMALL_FILES))
        wanted = (*_SMALL_FILES, *self._weights_of(folder))
        chosen = self._call(wanted, dry_run=True)
        missing_bytes = sum(file.file_size or 0 for file in chosen if file.will_download)
        total_bytes = sum(file.file_size or 0 for file in chosen)
        _check_disk(name, folder, missing_bytes)

        def tell(num_bytes: float) -> None:
            on_progress(
                FetchProgress(name, min(total_bytes, total_bytes - missing_bytes + int(num_bytes)), total_bytes)
            )

        tell(0)
        if missing_bytes:
            self._call(wanted, tqdm_class=_bar_class(tell))
            tell(missing_bytes)
        return folder

    def _weights_of(self, folder: Path) -> Sequence[str]:
        """Return the weight files that count: those of the index, where there is one."""
        index = folder / _INDEX
        if not index.is_file():
            return ("model.safetensors",) if (folder / "model.safetensors").exists() else (_WEIGHTS,)
        return sorted(set(json.loads(index.read_text()).get("weight_map", {}).values())) or (_WEIGHTS,)

    def _call(self, patterns: Sequence[str] | None, **options: Any) -> Any:
        """Call the library; folders of a repository hold other formats, which are left."""
        patterns = None if patterns is None else list(patterns)
        return self._download(
            self._name.repository,
            revision=self._name.revision,
            allow_patterns=patterns,
            ignore_patterns=["*/*"],
            **{"tqdm_class": _bar_class(_ignore), **options},
        )


def _check_disk(name: HubName, folder: Path, missing_bytes: int) -> None:
    free_bytes = shutil.disk_usage(folder).free
    if missing_bytes + _SPARE_BYTES > free_bytes:
        needed, spare = f"{missing_bytes / 1e9:.3g} GB", f"{_SPARE_BYTES / 1e9:.2g} GB"
        raise ConfigurationError(
            f"model {name}: {needed} are missing here, and {spare} are left free, but {folder} has "
            f"{free_bytes / 1e9:.3g} GB: make room, or let HF_HOME name a larger disk"
        )


def _told(error: Exception, name: HubName) -> str:
    """Return what a hub's refusal means to its user."""
    from huggingface_hub import constants, errors

    endpoint = os.environ.get("HF_ENDPOINT", constants.ENDPOINT)
    status = error.response.status_code if isinstance(error, errors.HfHubHTTPError) else None
    if isinstance(error, errors.GatedRepoError):
        return f"it is gated: accept its terms at {endpoint}/{name.repository}, then let HF_TOKEN hold your token"
    if isinstance(error, errors.RevisionNotFoundError):
        return f"{endpoint} has the model, but no revision {name.revision!r}"
    if status == 401 and "HF_TOKEN" in os.environ:
        return f"{endpoint} does not know the token in HF_TOKEN, or the model: check both"
    if isinstance(error, errors.RepositoryNotFoundError):
        return f"no such folder here, and {endpoint} shows no such model; a private one needs a token in HF_TOKEN"
    if isinstance(error, errors.OfflineModeIsEnabled):
        return f"it is not here whole ({constants.HF_HUB_CACHE}), and HF_HUB_OFFLINE forbids to fetch it"
    if status is not None:
        return f"{endpoint} answers {status}"
    return f"no such folder here, and {endpoint} does not give it: {error or type(error).__name__}"


def _bar_class(tell: Callable[[float], None]) -> type:
    """Return a class that the library takes for tqdm and that tells how many bytes have come."""
    from tqdm import tqdm

    class _Bar(tqdm):  # type: ignore[misc]
        _told_at = 0.0

        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **{**options, "disable": True})
            self.total = options.get("total")  # which tqdm leaves out where it is disabled
            self.is_of_bytes = options.get("unit") == "B" and "Reconstruct" in str(options.get("desc"))
            self.n = options.get("initial", 0)

        def update(self, n: float | None = 1) -> None:
            self.n += n or 0
            if self.is_of_bytes and time.monotonic() - self._told_at > _PROGRESS_SECONDS:
                self._told_at = time.monotonic()
                tell(self.n)

    return _Bar


def _ignore(_progress: object) -> None:
    """Leave it untold."""
