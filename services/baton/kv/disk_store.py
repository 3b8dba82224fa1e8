"""Contents of KV blocks on a local disk: what host memory has no room for, and what is to outlive the process."""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple, TypeAlias

from baton.kv.block_file import BlockFileError, read_block, write_block
from baton.kv.disk_index import DiskIndex, FolderLock
from baton.kv.hashing import BlockEvents, BlockHash

log = logging.getLogger(__name__)

Parts: TypeAlias = Sequence[bytes | memoryview]
"""Contents of a block, in pieces that belong one after the other."""
MAX_QUEUED_BYTES = 2**26
"""Contents that wait for the disk at most; what comes beyond is not written."""
_RATE_DECAY = 0.9
_EVENTS_WRITES = 64
"""Blocks written after which they are told of, though others wait: each message costs those who hear of them."""
_MAX_TOLD = 1 << 12
"""Blocks told of at once at most: who hears of a million on an event loop would do nothing else for a while."""


class _Read(NamedTuple):
    """Blocks that somebody waits for."""

    hashes: Sequence[BlockHash]
    on_read: Callable[[list[memoryview]], None]


class DiskBlockStore:
    """Keeps contents by the hash of their block in files, the least recently used go first; also over restarts.

    A thread of its own writes and reads; all methods may be called from any thread, and only `start`, `close` and
    `wait_for_room` wait. A file that is torn or flipped is dropped and counted. When the disk takes no more, the store
    is off: it holds nothing and takes nothing. Invariants, kept by the thread: files that are counted in the index take
    no more than `max_bytes`; a hash that was forgotten is not in the index, even if it was being written.

    `folder` is of one process at a time; files of other caches are kept as long as there is room, and not read.
    """

    def __init__(
        self,
        folder: Path,
        max_bytes: int,
        identity: bytes,
        write: Callable[[Path, bytes, BlockHash, Parts], None] = write_block,
    ) -> None:
        self.num_dropped_files = 0
        """That turned out to be broken."""
        self.bytes_per_second = 0.0
        """Rate at which blocks are read; 0: not known."""
        self._identity, self._write = identity, write
        self._index = DiskIndex(folder, max_bytes, identity)
        self._lock = FolderLock(folder)
        self._changed = threading.Condition()
        self.is_on = False
        """Whether blocks are written and read."""
        self._is_closing = False
        self._writes: OrderedDict[BlockHash, Parts] = OrderedDict()
        self._num_queued_bytes = 0
        self._writing: BlockHash | None = None
        self._num_untold = 0
        self._on_events: Callable[[BlockEvents], None] | None = None
        self._reads: deque[_Read] = deque()
        self._thread = threading.Thread(target=self._run, name="kv-disk", daemon=True)

    @property
    def num_bytes(self) -> int:
        """Return the size of all files."""
        return self._index.num_bytes

    def __contains__(self, block_hash: object) -> bool:
        """Return whether a block is on the disk."""
        return self.is_on and block_hash in self._index

    def start(self) -> None:
        """See what is on the disk, and begin; stay off, with a line in the log, if the folder cannot be used."""
        try:
            self._lock.acquire()
            self._index.load()
        except OSError as error:
            self._turn_off(error)
            return
        self.is_on = True
        self._thread.start()
        log.info("kv_disk_opened folder=%s blocks=%d bytes=%d", self._index.folder, len(self._index), self.num_bytes)

    def watch(self, on_events: Callable[[BlockEvents], None]) -> None:
        """Have somebody told, soon and from the store's thread, which blocks are here, and which come and go."""
        with self._changed:
            self._on_events = on_events
            self._changed.notify_all()

    def close(self, max_seconds: float = 5.0) -> None:
        """Write what is queued, as far as the time goes, and end."""
        if self._thread.is_alive():
            self._wait(lambda: not self._writes or not self.is_on, max_seconds)
            with self._changed:
                self._is_closing = True
                self._changed.notify_all()
            self._thread.join(timeout=max_seconds)
        self._lock.release()

    def put(self, block_hash: BlockHash, parts: Parts) -> None:
        """Let contents be written, if they are not there and the disk keeps up."""
        with self._changed:
            is_known = block_hash in self._index or block_hash in self._writes or block_hash == self._writing
            if not self.is_on or is_known or self._num_queued_bytes >= MAX_QUEUED_BYTES:
                return
            self._writes[block_hash] = parts
            self._num_queued_bytes += sum(map(len, parts))
            self._changed.notify_all()

    def wait_for_room(self, max_seconds: float) -> bool:
        """Wait until contents can be put; return whether they can."""
        return self._wait(lambda: self._num_queued_bytes < MAX_QUEUED_BYTES, max_seconds) and self.is_on

    def read(self, hashes: Sequence[BlockHash], on_read: Callable[[list[memoryview]], None]) -> None:
        """Read blocks, and hand over from the store's thread the contents of those before the first that fails."""
        with self._changed:
            is_on = self.is_on and not self._is_closing
            if is_on:
                self._reads.append(_Read(hashes, on_read))
                self._changed.notify_all()
        if not is_on:
            on_read([])

    def forget(self, hashes: Iterable[BlockHash]) -> None:
        """Drop contents, where they are here or on their way."""
        with self._changed:
            for block_hash in hashes:
                parts = self._writes.pop(block_hash, None)
                if parts is not None:
                    self._num_queued_bytes -= sum(map(len, parts))
                if self._writing == block_hash:
                    self._writing = None
                self._index.drop(block_hash)
            self._changed.notify_all()

    def _wait(self, is_done: Callable[[], bool], max_seconds: float) -> bool:
        with self._changed:
            return self._changed.wait_for(is_done, max_seconds)

    def _run(self) -> None:
        try:
            self._work()
        except Exception as error:  # the edge of the thread: whoever waits for a read must hear of it
            log.exception("kv_disk_died")
            self._turn_off(error)
            for reading in self._reads:
                reading.on_read([])
            while self._must_tell():  # last: whoever is told may be what has failed
                self._tell()

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._reads or self._writes or self._is_closing or self._must_tell())
                reading = self._reads[0] if self._reads else None
                must_write = bool(self._writes) and not self._is_closing
                if reading is None and self._is_closing:
                    return
            if reading is not None:
                self._serve(reading)
            elif must_write and self._num_untold < _EVENTS_WRITES:
                self._write_next()
            else:
                self._tell()

    def _must_tell(self) -> bool:
        return self._on_events is not None and self._index.has_events

    def _tell(self) -> None:
        """Tell of blocks that have come and gone, of some if there are many."""
        self._num_untold = 0
        if self._on_events is not None and self._index.has_events:
            self._on_events(self._index.drain_events(_MAX_TOLD))

    def _serve(self, reading: _Read) -> None:
        started, contents = time.perf_counter(), list[memoryview]()
        for block_hash in reading.hashes:
            payload = self._load(block_hash)
            if payload is None:
                break
            contents.append(payload)
        seconds = time.perf_counter() - started
        if contents and seconds > 0:
            self.bytes_per_second = max(sum(map(len, contents)) / seconds, _RATE_DECAY * self.bytes_per_second)
        reading.on_read(contents)
        with self._changed:
            self._reads.popleft()

    def _load(self, block_hash: BlockHash) -> memoryview | None:
        if block_hash not in self:
            return None
        try:
            payload = read_block(self._index.path_of(block_hash), self._identity, block_hash)
            self._index.touch(block_hash)
        except (BlockFileError, OSError) as error:
            self.num_dropped_files += 1
            log.warning("kv_block_dropped cause=%s", error)
            self._index.drop(block_hash)
            return None
        return payload

    def _write_next(self) -> None:
        with self._changed:
            block_hash, parts = self._writes.popitem(last=False)
            num_bytes = sum(map(len, parts))
            self._num_queued_bytes -= num_bytes
            self._writing = block_hash
        try:
            if self._index.make_room(num_bytes):
                self._write(self._index.path_of(block_hash), self._identity, block_hash, parts)
                with self._changed:
                    if self._writing == block_hash:
                        self._index.add(block_hash, num_bytes)
                        self._num_untold += 1
                    else:
                        self._index.path_of(block_hash).unlink(missing_ok=True)
        except OSError as error:
            self._turn_off(error)
        with self._changed:
            self._writing = None

    def _turn_off(self, error: Exception) -> None:
        with self._changed:
            self.is_on = False
            self._writes.clear()
            self._num_queued_bytes = 0
            self._index.abandon()
        log.warning("kv_disk_off folder=%s cause=%s", self._index.folder, error)
