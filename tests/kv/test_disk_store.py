"""Blocks on disk: bounds, order of use, restarts, and everything that a disk can do to them."""

from __future__ import annotations

import errno
import os
import queue
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from baton.kv.block_file import HEADER_BYTES, write_block
from baton.kv.disk_store import DiskBlockStore
from baton.kv.hashing import BlockEvents, BlockHash, Tier
from engine.rig import is_soon_idle

TIMEOUT_SECONDS = 60.0
IDENTITY = b"i" * 16
BLOCK_BYTES = 10
FILE_BYTES = BLOCK_BYTES + HEADER_BYTES


def _hash(number: int) -> BlockHash:
    return BlockHash(bytes([number]) * 16)


def _content(number: int) -> bytes:
    return bytes([number]) * BLOCK_BYTES


@contextmanager
def _store(
    folder: Path, max_files: int = 10, identity: bytes = IDENTITY, write: Callable[..., None] = write_block
) -> Iterator[DiskBlockStore]:
    store = DiskBlockStore(folder, max_files * FILE_BYTES, identity, write)
    store.start()
    try:
        yield store
    finally:
        store.close(TIMEOUT_SECONDS)


def _put(store: DiskBlockStore, *numbers: int) -> None:
    for number in numbers:
        store.put(_hash(number), [_content(number)[:3], _content(number)[3:]])
    assert is_soon_idle(store)


def _read(store: DiskBlockStore, *numbers: int) -> list[bytes]:
    answers: queue.SimpleQueue[list[memoryview]] = queue.SimpleQueue()
    store.read([_hash(number) for number in numbers], answers.put)
    return [bytes(payload) for payload in answers.get(timeout=TIMEOUT_SECONDS)]


def _present(store: DiskBlockStore) -> list[int]:
    return [number for number in range(20) if _hash(number) in store]


class _Told:
    """What a store says is on its disk."""

    def __init__(self, store: DiskBlockStore) -> None:
        self.events: list[BlockEvents] = []
        self._hashes: set[BlockHash] = set()
        self._changed = threading.Condition()
        store.watch(self._take)

    def wait_for(self, *numbers: int) -> bool:
        """Return whether in time exactly these blocks are told to be there."""
        expected = {_hash(number) for number in numbers}
        with self._changed:
            return self._changed.wait_for(lambda: self._hashes == expected, TIMEOUT_SECONDS)

    def _take(self, events: BlockEvents) -> None:
        assert events.tier is Tier.DISK
        with self._changed:
            self.events.append(events)
            self._hashes = self._hashes - set(events.removed) | set(events.stored)
            self._changed.notify_all()


def _file(folder: Path, number: int) -> Path:
    (found,) = folder.glob(f"*{_hash(number).hex()}*")
    return found


def test_blocks_survive_a_restart_in_order_of_their_use(tmp_path: Path) -> None:
    """What was used last before is kept longest after."""
    with _store(tmp_path) as store:
        _put(store, 1, 2, 3)
        assert _read(store, 1) == [_content(1)]
    for index, number in enumerate((2, 3, 1)):  # clocks of file systems are coarse
        os.utime(_file(tmp_path, number), ns=(index, index))

    with _store(tmp_path, max_files=3) as store:
        assert _read(store, 2, 3, 1) == [_content(2), _content(3), _content(1)]
        _put(store, 4)
        assert _present(store) == [1, 3, 4]
        assert store.num_bytes == 3 * FILE_BYTES
        assert store.bytes_per_second > 0


def test_whoever_watches_is_told_what_is_there_and_what_comes_and_goes(tmp_path: Path) -> None:
    """What an earlier process left, what is written, forgotten, broken, or makes room; not what other models left."""
    with _store(tmp_path, identity=b"j" * 16) as store:
        _put(store, 9)
    with _store(tmp_path) as store:
        _put(store, 1, 2)
    (tmp_path / "stranger.kv").write_bytes(b"")
    with _store(tmp_path, max_files=4) as store:
        told = _Told(store)
        assert told.wait_for(1, 2)
        _put(store, 3)
        assert told.wait_for(1, 2, 3)
        store.forget([_hash(1)])
        assert told.wait_for(2, 3)
        _file(tmp_path, 2).unlink()
        assert _read(store, 2) == []
        assert told.wait_for(3)
        _put(store, 4, 5, 6, 7)
        assert told.wait_for(4, 5, 6, 7)


def test_blocks_are_told_of_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """When the disk has nothing else to do, and after some writes if it has."""
    monkeypatch.setattr("baton.kv.disk_store._EVENTS_WRITES", 3)
    is_writing, may_write = threading.Event(), threading.Event()

    def write(*arguments: Any) -> None:
        is_writing.set()
        assert may_write.wait(TIMEOUT_SECONDS)
        write_block(*arguments)

    with _store(tmp_path, write=write) as store:
        told = _Told(store)
        store.put(_hash(0), [_content(0)])
        assert is_writing.wait(TIMEOUT_SECONDS)
        for number in range(1, 8):
            store.put(_hash(number), [_content(number)])
        may_write.set()
        assert told.wait_for(*range(8))

        assert [len(events.stored) for events in told.events] == [3, 3, 2]


def test_many_blocks_are_told_of_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What an earlier process left, and what is lost with the disk: who is told has other work, too."""
    monkeypatch.setattr("baton.kv.disk_store._MAX_TOLD", 3)
    with _store(tmp_path) as store:
        _put(store, *range(1, 9))

    def fail(*_: Any) -> None:
        raise ValueError("a fault in the store")

    with _store(tmp_path, write=fail) as store:
        told = _Told(store)
        assert told.wait_for(*range(1, 9))
        store.put(_hash(9), [_content(9)])
        assert told.wait_for()

        parts = [(len(events.stored), len(events.removed)) for events in told.events]
        assert parts == [(3, 0), (3, 0), (2, 0), (0, 3), (0, 3), (0, 2)]


def test_a_smaller_bound_holds_from_the_start(tmp_path: Path) -> None:
    """And one that nothing fits in keeps nothing."""
    with _store(tmp_path) as store:
        _put(store, 1, 2, 3)
    with _store(tmp_path, max_files=1) as store:
        assert store.num_bytes == FILE_BYTES
    with _store(tmp_path, max_files=0) as store:
        _put(store, 1)
        assert (store.num_bytes, store.is_on) == (0, True)


def test_a_broken_file_is_dropped_and_counted_and_ends_the_run(tmp_path: Path) -> None:
    """Torn, flipped or gone; the others stay, and the block may be written again."""
    with _store(tmp_path) as store:
        _put(store, *range(1, 7))
        _file(tmp_path, 2).write_bytes(_file(tmp_path, 2).read_bytes()[:-1])
        data = bytearray(_file(tmp_path, 4).read_bytes())
        data[-1] ^= 1
        _file(tmp_path, 4).write_bytes(data)
        _file(tmp_path, 6).unlink()

        assert _read(store, 1, 2, 3) == [_content(1)]
        assert _read(store, 3, 4) == [_content(3)]
        assert _read(store, 5, 6) == [_content(5)]
        assert _present(store) == [1, 3, 5]
        assert store.num_dropped_files == 3
        _put(store, 4)
        assert _read(store, 4) == [_content(4)]


def test_what_another_model_left_is_not_read_but_makes_room(tmp_path: Path) -> None:
    """The bound is the folder's."""
    with _store(tmp_path) as store:
        _put(store, 1, 2)
    with _store(tmp_path, max_files=2, identity=b"j" * 16) as store:
        assert _present(store) == []
        _put(store, 1)
        assert _present(store) == [1]
        assert store.num_bytes == 2 * FILE_BYTES


def test_a_file_that_was_not_written_to_its_end_is_removed(tmp_path: Path) -> None:
    """The process died over it."""
    (tmp_path / "x.kv.part").write_bytes(b"half")

    with _store(tmp_path) as store:
        assert (list(tmp_path.glob("*.part")), store.num_bytes) == ([], 0)


def test_a_full_disk_turns_the_store_off(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """With a line in the log, and without an error for anybody."""

    def write(path: Path, *arguments: Any) -> None:
        if path.name.endswith(f"{_hash(2).hex()}.kv"):
            raise OSError(errno.ENOSPC, "No space left on device")
        write_block(path, *arguments)

    with _store(tmp_path, write=write) as store:
        told = _Told(store)
        _put(store, 1)
        assert told.wait_for(1)
        _put(store, 2, 3)

        assert not store.is_on
        assert told.wait_for()
        assert (_present(store), _read(store, 1)) == ([], [])
        assert "kv_disk_off" in caplog.text
        assert "No space left" in caplog.text
        assert list(tmp_path.glob("*.part")) == []


def test_whoever_waits_for_a_read_is_answered_though_telling_fails(tmp_path: Path) -> None:
    """The thread ends over it; nobody is told that the blocks are gone before the reads are answered."""
    seen: list[str] = []
    is_told_twice = threading.Event()

    def on_events(_: BlockEvents) -> None:
        seen.append("told")
        if seen == ["told"]:
            store.read([_hash(1)], lambda contents: seen.append(f"read {len(contents)}"))
            raise ValueError("the listener is broken")
        is_told_twice.set()

    with _store(tmp_path) as store:
        _put(store, 1)
        store.watch(on_events)
        assert is_told_twice.wait(TIMEOUT_SECONDS)

    assert seen == ["told", "read 0", "told"]


def test_a_folder_that_cannot_be_used_leaves_the_store_off(tmp_path: Path) -> None:
    """It is no folder, or another process has it."""
    (tmp_path / "file").write_bytes(b"")
    with _store(tmp_path / "file") as store:
        assert not store.is_on
    with _store(tmp_path) as first, _store(tmp_path) as second:
        assert (first.is_on, second.is_on) == (True, False)
        _put(second, 1)
        assert _read(second, 1) == []


def test_what_is_forgotten_is_gone_wherever_it_was(tmp_path: Path) -> None:
    """On the disk, being written, or waiting for it."""
    is_writing, may_write = threading.Event(), threading.Event()

    def write(*arguments: Any) -> None:
        is_writing.set()
        assert may_write.wait(TIMEOUT_SECONDS)
        write_block(*arguments)

    with _store(tmp_path) as store:
        _put(store, 1, 2)
    with _store(tmp_path, write=write) as store:
        for number in (3, 4, 5):
            store.put(_hash(number), [_content(number)])
        assert is_writing.wait(TIMEOUT_SECONDS)
        store.forget([_hash(number) for number in (1, 3, 4)])
        may_write.set()

        assert is_soon_idle(store)
        assert _present(store) == [2, 5]
        assert len(list(tmp_path.glob("*.kv"))) == 2


def test_contents_beyond_what_may_wait_are_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A slow disk costs no memory; and whoever has time can wait for it."""
    monkeypatch.setattr("baton.kv.disk_store.MAX_QUEUED_BYTES", 2 * BLOCK_BYTES)
    may_write, is_writing = threading.Event(), threading.Event()

    def write(*arguments: Any) -> None:
        is_writing.set()
        assert may_write.wait(TIMEOUT_SECONDS)
        write_block(*arguments)

    with _store(tmp_path, write=write) as store:
        store.put(_hash(1), [_content(1)])
        assert is_writing.wait(TIMEOUT_SECONDS)
        for number in (2, 3, 4):
            store.put(_hash(number), [_content(number)])
        assert not store.wait_for_room(0.0)
        may_write.set()

        assert store.wait_for_room(TIMEOUT_SECONDS)
        assert is_soon_idle(store)
        assert _present(store) == [1, 2, 3]
