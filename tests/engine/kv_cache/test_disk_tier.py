"""An engine whose prefix cache goes on on disk."""

from __future__ import annotations

import errno
import threading
from pathlib import Path
from typing import Any

import pytest

from baton.capacity.snapshot import TierRates
from baton.engine.events import Ended
from baton.engine.kv_cache.offload import TierHits
from baton.engine.request import KvExportSpec, Purpose
from baton.engine.runners.base import LayerKv
from baton.kv.block_file import cache_identity, write_block
from baton.kv.disk_store import DiskBlockStore
from baton.kv.hashing import Tier, block_hashes, root_hash
from engine.rig import LAYOUT, TIMEOUT_SECONDS, Rig, expected_tokens, has_written, mock_runner, prompt_of, request_of

BLOCK_BYTES = 4 * LAYOUT.num_token_bytes()
PROMPTS = [prompt_of(40, seed) for seed in range(4)]
DISK_BYTES = 2**20


def _disk(folder: Path, **arguments: Any) -> DiskBlockStore:
    disk = DiskBlockStore(folder, DISK_BYTES, cache_identity(LAYOUT, 4), **arguments)
    disk.start()
    return disk


def _rig(disk: DiskBlockStore, host_blocks: int = 24, num_blocks: int = 16) -> Rig:
    return Rig(mock_runner(num_blocks=num_blocks), host_bytes=host_blocks * BLOCK_BYTES, disk=disk)


def _ask(rig: Rig, name: str, seed: int, **fields: object) -> int:
    """Check what a request says, and return how much of it was cached."""
    listening = rig.submit(request_of(PROMPTS[seed], f"{name}{seed}", **fields))
    assert listening.result() == expected_tokens(PROMPTS[seed], 8)
    ended = listening.seen[-1]
    assert isinstance(ended, Ended)
    return ended.prompt_work.num_cached_tokens


def _fill(folder: Path) -> None:
    """Let an engine write all prompts to disk, and end."""
    disk = _disk(folder)
    with _rig(disk) as rig:
        for seed in range(4):
            _ask(rig, "first", seed)
            assert has_written(rig.engine, disk)


def _hits(rig: Rig) -> TierHits:
    hits = rig.do(lambda: rig.engine.scheduler.offload.hits)
    assert isinstance(hits, TierHits)
    return hits


def test_a_prompt_comes_back_from_wherever_it_is(tmp_path: Path) -> None:
    """Every byte, for the next token depends on each; and hits are counted where they were."""
    disk = _disk(tmp_path)
    with _rig(disk) as rig:
        for seed in range(4):
            assert _ask(rig, "first", seed) == 0
            assert has_written(rig.engine, disk)
        assert _ask(rig, "second", 0) == 36
        assert _hits(rig).disk > 0
        assert _ask(rig, "third", 0) == 36

        device, host, on_disk = _hits(rig)
        assert device == 36
        assert host + on_disk == 36


def test_what_leaves_the_device_is_told_of_where_it_is(tmp_path: Path) -> None:
    """Of what host memory has no room for, too; after a restart, of what is on disk."""
    disk = _disk(tmp_path)
    with _rig(disk) as rig:
        for seed in range(4):
            _ask(rig, "first", seed)
            assert has_written(rig.engine, disk)
        hashes = block_hashes(root_hash(LAYOUT.model_revision_digest, 4), PROMPTS[0], 4)

        assert rig.do(lambda: rig.engine.scheduler.pool.match(hashes)) == []
        assert rig.wait_for(lambda: rig.hashes[Tier.DISK] >= set(hashes))
        assert rig.hashes[Tier.HOST]
        rates = rig.do(lambda: rig.engine.scheduler.offload.rates)
        assert isinstance(rates, TierRates)
        assert rates.max_read_blocks == 12

    with _rig(_disk(tmp_path)) as rig:
        assert rig.wait_for(lambda: rig.hashes[Tier.DISK] >= set(hashes))
        assert not rig.hashes[Tier.HOST]


def test_blocks_survive_a_restart(tmp_path: Path) -> None:
    """Those that were evicted, and those that were not: the end of the engine writes them."""
    _fill(tmp_path)

    with _rig(_disk(tmp_path)) as rig:
        assert [_ask(rig, "second", seed) for seed in range(4)] == [36] * 4
        assert _hits(rig) == TierHits(0, 0, 4 * 36)


@pytest.mark.parametrize("purpose", [Purpose.GENERATE, Purpose.PREFILL])
def test_a_prefill_hands_out_what_comes_from_disk(tmp_path: Path, purpose: Purpose) -> None:
    """Its export covers every position, computed or not."""
    _fill(tmp_path)
    exported: set[tuple[int, int]] = set()

    def export(start: int, layer: int, kv: LayerKv) -> None:
        spec = LAYOUT.layers[layer]
        num_tokens = len(kv.keys) // (spec.num_kv_heads * spec.key_head_dim * LAYOUT.dtype.num_bytes)
        exported.update((layer, position) for position in range(start, start + num_tokens))

    with _rig(_disk(tmp_path)) as rig:
        is_prefill = purpose is Purpose.PREFILL
        listening = rig.submit(
            request_of(PROMPTS[1], purpose=purpose, export=KvExportSpec(export) if is_prefill else None)
        )

        assert listening.result() == expected_tokens(PROMPTS[1], 1 if is_prefill else 8)
        assert len(exported) == (40 * LAYOUT.num_layers if is_prefill else 0)


def test_broken_files_are_computed_again(tmp_path: Path) -> None:
    """The head of the run is used as far as it is right; what is broken is counted, and nobody fails."""
    _fill(tmp_path)
    for path in tmp_path.glob("*.kv"):
        data = bytearray(path.read_bytes())
        data[-1] ^= 1
        path.write_bytes(data)

    disk = _disk(tmp_path)
    with _rig(disk) as rig:
        assert [_ask(rig, "second", seed) for seed in range(4)] == [0] * 4
        assert rig.do(lambda: rig.engine.scheduler.offload.num_dropped_files) == 4
        assert disk.is_on


def test_a_full_disk_fails_nobody(tmp_path: Path) -> None:
    """The store is off, and prompts are computed."""

    def write(path: Path, *arguments: Any) -> None:
        if len(list(tmp_path.glob("*.kv"))) >= 5:
            raise OSError(errno.ENOSPC, "No space left on device")
        write_block(path, *arguments)

    disk = _disk(tmp_path, write=write)
    with _rig(disk, host_blocks=8) as rig:
        for name in ("first", "second"):
            for seed in range(4):
                _ask(rig, name, seed)
                assert has_written(rig.engine, disk)
        assert not disk.is_on


def test_others_go_on_while_a_request_waits_for_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And one that is aborted meanwhile leaves nothing behind."""
    _fill(tmp_path)
    is_reading, may_read = threading.Event(), threading.Event()
    disk = _disk(tmp_path)
    load = disk._load

    def slow(block_hash: Any) -> memoryview | None:
        is_reading.set()
        assert may_read.wait(TIMEOUT_SECONDS)
        return load(block_hash)

    monkeypatch.setattr(disk, "_load", slow)
    with _rig(disk) as rig:
        try:
            aborted = request_of(PROMPTS[0], "aborted")
            rig.submit(aborted)
            waiting = rig.submit(request_of(PROMPTS[1], "waiting"))
            assert is_reading.wait(TIMEOUT_SECONDS)
            other = prompt_of(30, seed=9)
            assert rig.generate(request_of(other, "other")) == expected_tokens(other, 8)
            rig.engine.abort(aborted)
            assert not waiting.seen
        finally:
            may_read.set()
        assert waiting.result() == expected_tokens(PROMPTS[1], 8)


def test_salts_keep_prompts_apart_on_disk_too(tmp_path: Path) -> None:
    """The salt is in the hash."""
    _fill(tmp_path)

    with _rig(_disk(tmp_path)) as rig:
        assert _ask(rig, "salted", 0, cache_salt="other") == 0
        assert _ask(rig, "bypassed", 0, is_cache_bypassed=True) == 0
        assert _ask(rig, "plain", 0) == 36
