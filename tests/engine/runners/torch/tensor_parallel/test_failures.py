"""Ranks that fail: never an answer of ranks that are out of step, and a refusal of all of them is no death of one."""

from __future__ import annotations

import os
import queue
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from torch import distributed
from transformers import LlamaConfig, LlamaForCausalLM

from baton.engine.kv_cache.pool_size import PoolBounds
from baton.engine.runners.base import LayerKv, Span
from baton.engine.runners.torch.loader import LoadOptions
from baton.engine.runners.torch.tensor_parallel import peer
from baton.engine.runners.torch.tensor_parallel.runner import ParallelRunner, load_parallel_runner
from baton.errors import ConfigurationError, UnavailableError
from checkpoints import checkpoint

PROMPT = [5, 9, 30, 11, 8, 21, 4]
TABLE = [3]
FIRST_RANK = (0, 70)
"""Its number, and the status with which it ends the node."""


class Ranks(NamedTuple):
    """Two ranks, and the deaths told."""

    runner: ParallelRunner
    deaths: queue.SimpleQueue[tuple[int, int]]


@pytest.fixture
def ranks() -> Iterator[Ranks]:
    """Run two ranks whose first does not end the test's process."""
    deaths: queue.SimpleQueue[tuple[int, int]] = queue.SimpleQueue()
    options = LoadOptions(
        checkpoint("qwen2"), "qwen2", 8, num_threads=1, uses_decode_buffers=True, bounds=PoolBounds(max_batch_size=4)
    )
    runner = load_parallel_runner(options, 2, on_death=lambda *death: deaths.put(death))
    process = runner.peers[0].process
    yield Ranks(runner, deaths)
    process.kill()  # it may wait for the first rank in the midst of a pass
    runner.close()


def test_a_pass_that_fails_in_the_first_rank_is_its_last(ranks: Ranks) -> None:
    """The other one stands in the midst of that pass, and would add its sums to those of the next."""

    def sink(_layer: int, _kv: LayerKv) -> None:
        raise MemoryError("no pinned memory")

    with pytest.raises(MemoryError):
        ranks.runner.launch([Span(PROMPT, 0, TABLE, needs_logits=True, layer_sink=sink)])

    assert ranks.deaths.get(timeout=60) == FIRST_RANK
    with pytest.raises(UnavailableError, match="out of step"):
        ranks.runner.launch([Span(PROMPT, 0, TABLE, needs_logits=True)])
    assert ranks.deaths.empty()


def test_what_comes_too_late_is_not_taken_for_something_else(ranks: Ranks, monkeypatch: pytest.MonkeyPatch) -> None:
    """Layers are as long as each other: an answer that nobody waits for any more would pass for the next one's."""
    ranks.runner.launch([Span(PROMPT, 0, TABLE, needs_logits=True)]).tokens()
    monkeypatch.setattr(peer, "ANSWER_SECONDS", 0.1)
    process = ranks.runner.peers[0].process
    os.kill(process.pid, signal.SIGSTOP)

    with pytest.raises(UnavailableError, match="has sent nothing"):
        ranks.runner.read_kv(TABLE, 0, 0, len(PROMPT))

    assert ranks.deaths.get(timeout=60) == FIRST_RANK
    monkeypatch.undo()
    os.kill(process.pid, signal.SIGCONT)
    with pytest.raises(UnavailableError, match="out of step"):
        ranks.runner.read_kv(TABLE, 1, 0, len(PROMPT))


def test_what_all_of_three_ranks_refuse_is_told_by_its_reason(tmp_path: Path) -> None:
    """The others refuse it too and would end by themselves; were that told as a death, the node would end for it."""
    deaths: list[tuple[int, int]] = []
    sizes = {"vocab_size": 9, "hidden_size": 24, "intermediate_size": 9, "num_hidden_layers": 1}
    LlamaForCausalLM(LlamaConfig(**sizes, num_attention_heads=3)).save_pretrained(tmp_path)
    options = LoadOptions(tmp_path, "three", 10**12, num_threads=1)

    with pytest.raises(ConfigurationError, match=r"num_blocks 1000000000000: .* \d+ would, auto takes \d+"):
        load_parallel_runner(options, 3, on_death=lambda *death: deaths.append(death))

    distributed.destroy_process_group()
    assert deaths == []
