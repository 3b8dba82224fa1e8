"""Which blocks' files a folder holds, in order of use."""

from __future__ import annotations

import fcntl
import os
import re
import threading
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path

from baton.kv.block_file import HEADER_BYTES, PART_SUFFIX
from baton.kv.hashing import HASH_BYTES, BlockEvents, BlockHash, Tier
from baton.kv.pool import BlockChanges

_SUFFIX = ".kv"
_HEX = re.compile(f"[0-9a-f]{{{2 * HASH_BYTES}}}")


class DiskIndex:
    """Names and sizes of files, the least recently used first; of all caches, so that those of old models go.

    The time of a file's last change is that of its last use, so that the order outlives the process. All methods may be
    called from any thread.
    """

    def __init__(self, folder: Path, max_bytes: int, identity: bytes) -> None:
        self.folder = folder
        self.num_bytes = 0
        self._max_bytes = max_bytes
        self._prefix = identity[:8].hex()
        self._sizes: OrderedDict[str, int] = OrderedDict()
        self._lock = threading.RLock()
        self._changes = BlockChanges(Tier.DISK)
        self._is_abandoned = False

    @property
    def has_events(self) -> bool:
        """Return whether blocks have come or gone since the last look."""
        return bool(self._changes)

    def __len__(self) -> int:
        """Return the number of files."""
        return len(self._sizes)

    def __contains__(self, block_hash: object) -> bool:
        """Return whether a block has a file."""
        return isinstance(block_hash, bytes) and self._name(BlockHash(block_hash)) in self._sizes

    def path_of(self, block_hash: BlockHash) -> Path:
        """Return where a block's file is, or would be."""
        return self.folder / self._name(block_hash)

    def load(self) -> None:
        """Take in what the folder holds, and remove unfinished files; raise OSError if the folder cannot be used."""
        found = []
        for entry in os.scandir(self.folder):
            if entry.name.endswith(PART_SUFFIX):
                Path(entry.path).unlink(missing_ok=True)
            elif entry.name.endswith(_SUFFIX):
                status = entry.stat()
                found.append((status.st_mtime_ns, entry.name, status.st_size))
        with self._lock:
            for _, name, size in sorted(found):
                self._add(name, size)
        self.make_room(0)

    def make_room(self, num_payload_bytes: int) -> bool:
        """Remove the least recently used files until another one fits; return whether it does."""
        num_bytes = num_payload_bytes + HEADER_BYTES if num_payload_bytes else 0
        with self._lock:
            while self._sizes and self.num_bytes + num_bytes > self._max_bytes:
                self._remove(next(iter(self._sizes)))
            return num_bytes <= self._max_bytes

    def add(self, block_hash: BlockHash, num_payload_bytes: int) -> None:
        """Take in a block's file."""
        with self._lock:
            self._add(self._name(block_hash), num_payload_bytes + HEADER_BYTES)

    def touch(self, block_hash: BlockHash) -> None:
        """Count a block as used; raises OSError if its file is gone."""
        name = self._name(block_hash)
        os.utime(self.folder / name)
        with self._lock:
            if name in self._sizes:
                self._sizes.move_to_end(name)

    def drop(self, block_hash: BlockHash) -> None:
        """Remove a block's file, if there is one."""
        with self._lock:
            self._remove(self._name(block_hash))

    def abandon(self) -> None:
        """Leave the files where they are, and tell of all blocks as gone: nobody can read them any more."""
        with self._lock:
            for name in self._sizes:
                self._note(name, self._changes.remove)
            self._is_abandoned = True

    def drain_events(self, max_hashes: int) -> BlockEvents:
        """Return and forget which of the cache's blocks have come and gone and were not returned, at most so many."""
        with self._lock:
            return self._changes.drain(max_hashes)

    def _add(self, name: str, num_bytes: int) -> None:
        if name not in self._sizes:
            self._note(name, self._changes.store)
        self.num_bytes += num_bytes - self._sizes.get(name, 0)
        self._sizes[name] = num_bytes

    def _remove(self, name: str) -> None:
        if name in self._sizes:
            self.num_bytes -= self._sizes.pop(name)
            self._note(name, self._changes.remove)
            (self.folder / name).unlink(missing_ok=True)

    def _note(self, name: str, change: Callable[[BlockHash], None]) -> None:
        """Note a change, if the file is one of this cache's: others' are not read."""
        prefix, _, digits = name.removesuffix(_SUFFIX).partition("-")
        if prefix == self._prefix and _HEX.fullmatch(digits) and not self._is_abandoned:
            change(BlockHash(bytes.fromhex(digits)))

    def _name(self, block_hash: BlockHash) -> str:
        return f"{self._prefix}-{block_hash.hex()}{_SUFFIX}"


class FolderLock:
    """Keeps a second process out of a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._descriptor = -1

    def acquire(self) -> None:
        """Make the folder if there is none, and take it; raise OSError if that fails, or another process has it."""
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)  # KV tells as much as the prompts
        descriptor = os.open(self._folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(descriptor)
            raise
        self._descriptor = descriptor

    def release(self) -> None:
        """Give it back."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
