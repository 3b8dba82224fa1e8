"""Opens the folder in which a node keeps KV blocks."""

from __future__ import annotations

from pathlib import Path

from baton.engine.runners.base import Runner
from baton.kv.block_file import cache_identity
from baton.kv.disk_store import DiskBlockStore
from baton.worker.settings import WorkerSettings


def open_disk(settings: WorkerSettings, runner: Runner) -> DiskBlockStore | None:
    """Return the blocks on disk, which may be none yet, or None if the settings name no folder.

    A folder that cannot be used is no reason not to serve: its store is off, and the log says why.
    """
    if not settings.disk_kv_dir:
        return None
    variant = f"{settings.engine}/{settings.weight_dtype}/{settings.kv_quantization}"
    identity = cache_identity(runner.info.layout, runner.block_tokens, variant)
    store = DiskBlockStore(Path(settings.disk_kv_dir), settings.disk_kv_bytes, identity)
    store.start()
    return store
