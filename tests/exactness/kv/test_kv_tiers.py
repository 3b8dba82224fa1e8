"""Prompts whose KV comes back from host memory or disk: still their tokens."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from baton.engine.kv_cache.offload import Offload
from baton.kv.block_file import cache_identity
from baton.kv.disk_store import DiskBlockStore
from checkpoints import checkpoint, reference_generate
from engine.rig import has_written
from exactness.handover import generate, greedy, start_engine
from exactness.loading import BLOCK_TOKENS, Framework, load_runner

NUM_NEW_TOKENS = 12
TIMEOUT_SECONDS = 60.0


@pytest.mark.parametrize("framework", ["torch", "mlx"])
def test_restored_prompts_give_the_tokens_of_each_alone(
    framework: Framework, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In float32: computed, from host memory, and after a restart from disk, by a pool that holds one of them.

    Whether a copy is worth its time depends on the machine: here it always is.
    """
    for decision in ("_is_quicker", "_is_read_quicker"):
        monkeypatch.setattr(Offload, decision, lambda *_arguments, **_figures: True)
    random_ids = random.Random(7)
    prompts = [[random_ids.randrange(3, 512) for _ in range(length)] for length in (70, 90, 81)]
    expected = [reference_generate(checkpoint("llama"), prompt, NUM_NEW_TOKENS) for prompt in prompts]
    found = []
    for round_index in range(2):
        runner = load_runner(framework, checkpoint("llama"), num_blocks=8)
        disk = DiskBlockStore(tmp_path, 2**26, cache_identity(runner.info.layout, BLOCK_TOKENS))
        disk.start()
        engine = start_engine(runner, host_bytes=2**24, disk=disk)
        monkeypatch.setattr(engine.scheduler.offload, "note_pass", lambda _seconds: None)
        for repeat in range(2):
            for index, prompt in enumerate(prompts):
                name = f"r{round_index}-{repeat}-{index}"
                assert generate(engine, name, prompt, greedy(NUM_NEW_TOKENS)).tokens() == expected[index]
                assert has_written(engine, disk)
        engine.close()
        found.append(engine.scheduler.offload.hits)

    assert found[0].host > 0
    assert found[0].disk == 0
    assert found[1].disk == sum((len(prompt) - 1) // BLOCK_TOKENS * BLOCK_TOKENS for prompt in prompts)
