"""Brings a model of a hub to this machine, into the cache that all programs of the hub's library share.

HF_HOME, HF_ENDPOINT, HF_TOKEN and HF_HUB_OFFLINE mean what they mean everywhere. A revision is resolved once, to a
commit; of a commit that is here whole nothing is asked. What will be fetched, and whether the disk holds it, is known
before the first byte of it; what has come stays, and the next attempt goes on from there.
"""

from __future__ import annotations

import logging
import os
import re
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, NamedTuple, cast

from pydantic import BeforeValidator

from baton.errors import ConfigurationError
from baton.installation import install_line
from baton.weights.manifest import SMALL_FILES, WEIGHTS, FileDigest, digest_of_file, make_manifest, weight_files
from baton.weights.model_name import HubName, parse_model
from baton.weights.store import WeightStore, check_disk, default_store

log = logging.getLogger(__name__)

_OTHER_WEIGHTS = (".gguf", ".bin", ".pth", ".pt", ".onnx")
_COMMIT = re.compile(r"[0-9a-f]{40}")
_NUM_STREAMS = 4
"""Files that come at once."""
_LOG_SECONDS = 10.0


class FetchProgress(NamedTuple):
    """How far a fetch has come."""

    name: HubName
    """Model, at the commit that its revision is."""
    done_bytes: int
    total_bytes: int


def model_folder(text: str, on_progress: Callable[[FetchProgress], None] | None = None) -> Path:
    """Return the folder of a model that a user names, fetched first if it is a hub's and not here.

    Args:
        text: Folder, or `org/name[@revision]`.
        on_progress: Told of what comes, some times a second, from any thread.

    Raises ConfigurationError if there is none, or it cannot be fetched; the message has the remedy.
    """
    name = parse_model(text)
    return fetch_model(name, on_progress or (lambda _: None)) if isinstance(name, HubName) else name


class CachedModel(NamedTuple):
    """A model of a hub that lies here."""

    name: HubName
    num_bytes: int
    folder: Path


def cached_models() -> list[CachedModel]:
    """Return the models with safetensors in the hub's cache of this machine and in its store, by name."""
    store = default_store()
    kept = [
        CachedModel(HubName(one.name, one.revision), one.num_bytes, store.folder_of(one))
        for one in store.manifests()
        if store.folder_of(one).is_dir()
    ]
    try:
        from huggingface_hub import constants, scan_cache_dir
        from huggingface_hub.errors import CacheNotFound
    except ImportError:
        return sorted(kept)
    try:
        repositories = scan_cache_dir(constants.HF_HUB_CACHE).repos
    except CacheNotFound:
        return sorted(kept)
    found = [
        CachedModel(HubName(each.repo_id, revision.commit_hash), revision.size_on_disk, revision.snapshot_path)
        for each in repositories
        for revision in each.revisions
        if any(file.file_name.endswith(".safetensors") for file in revision.files)
    ]
    return sorted(kept + found)


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
    """Bring a model's files that are not here; return their folder. Raises ConfigurationError if hub or disk fail."""
    try:
        import huggingface_hub
        from huggingface_hub import constants, errors
    except ImportError as error:
        raise ConfigurationError(
            f"model {name}: a hub is asked by huggingface_hub: {install_line('worker')}"
        ) from error
    constants.HF_HUB_DISABLE_XET = True  # its bytes come in any order, and from elsewhere than a mirror
    hub = _Hub(name, huggingface_hub.snapshot_download, default_store())
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

    def __init__(self, name: HubName, download: Callable[..., Any], store: WeightStore) -> None:
        self._name = name
        self._download = download
        self._store = store

    def local(self) -> Path:
        """Return the folder if all is here, without asking anybody; other machines may have given it."""
        from huggingface_hub.errors import LocalEntryNotFoundError

        try:
            found = Path(self._call(SMALL_FILES, local_files_only=True))
            return Path(self._call((*SMALL_FILES, *weight_files(found)), local_files_only=True))
        except LocalEntryNotFoundError:
            if kept := self._store.find(str(self._name)):
                return kept
            raise

    def fetch(self, on_progress: Callable[[FetchProgress], None]) -> Path:
        """Bring what is not here; return the folder."""
        listed = self._call(None, dry_run=True)
        commit = listed[0].commit_hash if listed else self._name.revision
        name = self._name._replace(revision=commit)
        self._name = name
        if kept := self._store.find(str(name)):
            return kept
        files = [file.filename for file in listed]
        if not any(Path(file).match(WEIGHTS) and "/" not in file for file in files):
            others = sorted(file for file in files if file.endswith(_OTHER_WEIGHTS))
            found = f", only {others[0]}" if others else ""
            raise ConfigurationError(f"model {name}: no *.safetensors file{found}: choose one that has them")
        folder = Path(self._call(SMALL_FILES))
        wanted = (*SMALL_FILES, *weight_files(folder))
        chosen = self._call(wanted, dry_run=True)
        missing_bytes = sum(file.file_size or 0 for file in chosen if file.will_download)
        total_bytes = sum(file.file_size or 0 for file in chosen)
        check_disk(name, folder, missing_bytes, "HF_HOME")

        def tell(num_bytes: float) -> None:
            on_progress(
                FetchProgress(name, min(total_bytes, total_bytes - missing_bytes + int(num_bytes)), total_bytes)
            )

        tell(0)
        if missing_bytes:
            self._bring_weights(folder, chosen, tell)
            self._call(wanted)  # names what has come, and brings what has no digest
            tell(missing_bytes)
        return folder

    def _bring_weights(self, folder: Path, chosen: Sequence[Any], tell: Callable[[float], None]) -> None:
        """Bring, by the store, what the hub has digests of: other machines take it while it comes.

        The hub's library would begin each file anew that it was killed in, and compares no digest.
        """
        from huggingface_hub import HfApi, hf_hub_url
        from huggingface_hub.file_download import http_get
        from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined] # it does, lazily

        name, revision = self._name
        listed = {each.path: each for each in HfApi().list_repo_tree(name, revision=revision)}
        elsewhere, files = {}, []
        for file in chosen:
            large, path = getattr(listed.get(file.filename), "lfs", None), folder / file.filename
            sha256 = digest_of_file(path) if path.is_file() else getattr(large, "sha256", "")
            if not sha256:
                return
            files.append(FileDigest(file.filename, file.file_size, sha256))
            if path.is_file():
                elsewhere[sha256] = path
        self._store.begin(make_manifest(name, revision, files), elsewhere)
        counting, num_bytes = threading.Lock(), 0

        def count(num_new_bytes: int) -> None:
            nonlocal num_bytes
            with counting:
                num_bytes += num_new_bytes
                tell(num_bytes)

        def bring(file: FileDigest) -> None:
            with self._store.receive(file, waits=True) as arriving:
                if arriving is not None and (begin := arriving.num_bytes) <= file.num_bytes:
                    count(begin)
                    arriving.on_written = count
                    if begin < file.num_bytes:
                        url = hf_hub_url(name, file.name, revision=revision)
                        http_get(
                            url,
                            cast(Any, arriving),
                            resume_size=begin,
                            headers=build_hf_headers(),
                            expected_size=file.num_bytes,
                            tqdm_class=_bar_class(),
                        )
                    if not arriving.finish():
                        raise ConfigurationError(f"model {self._name}: the hub's {file.name} has another digest")
            blob = folder.parents[1] / "blobs" / file.sha256
            if blob.exists():
                return
            try:
                blob.hardlink_to(self._store.path_of(file))
            except OSError:  # another file system
                blob.symlink_to(self._store.path_of(file))

        with ThreadPoolExecutor(_NUM_STREAMS) as threads:
            list(threads.map(bring, [file for file in files if file.sha256 not in elsewhere]))

    def _call(self, patterns: Sequence[str] | None, **options: Any) -> Any:
        """Call the library; folders of a repository hold other formats, which are left."""
        patterns = None if patterns is None else list(patterns)
        return self._download(
            self._name.repository,
            revision=self._name.revision,
            allow_patterns=patterns,
            ignore_patterns=["*/*"],
            **{"tqdm_class": _bar_class(), **options},
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


def _bar_class() -> type:
    """Return a class that the library takes for tqdm and that shows nothing."""
    from tqdm import tqdm

    class _Bar(tqdm):  # type: ignore[misc]
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **{**options, "disable": True})

    return _Bar
