"""How much of the device's memory a node of the mlx engine takes."""

from __future__ import annotations

import logging

import pytest

from baton.config.container_limits import Memory
from baton.engine.runners.base import Span
from baton.errors import ConfigurationError
from checkpoints import checkpoint

mx = pytest.importorskip("mlx.core")

from baton.engine.runners.mlx import load_mlx_runner, memory  # noqa: E402 (needs mlx)
from baton.engine.runners.mlx.memory import device_bytes, position_bytes, row_positions  # noqa: E402

BLOCK_BYTES = 16 * 1024
"""K and V of a block of the tiny model in float32."""


def leave(monkeypatch: pytest.MonkeyPatch, free_bytes: int) -> None:
    """Have so much of the machine's memory be free."""
    monkeypatch.setattr(memory, "usable_memory", lambda: Memory(1 << 40, free_bytes))


def test_rows_have_a_quarter_more_positions_than_the_pool_where_there_is_room() -> None:
    """So it is where the device's memory is unknown, too."""
    assert row_positions(1000, 10, 5000, 50_000) == 1250
    assert row_positions(1000, 10, 5000, 0) == 1250


def test_rows_take_what_model_and_blocks_leave() -> None:
    """Of 18,000 bytes the model has 5,000 and the blocks 10,000: 300 positions are left, or none at all."""
    assert row_positions(1000, 10, 5000, 18_000) == 300
    assert row_positions(1000, 10, 5000, 15_000) == 0
    assert row_positions(1000, 10, 5000, 14_000) == 0


@pytest.mark.parametrize("is_kv_quantized", [False, True])
def test_bytes_of_a_position_are_those_that_the_blocks_take(is_kv_quantized: bool) -> None:
    """What is planned is what is allocated, as they are or in 8 bits."""
    runner = load_mlx_runner(checkpoint("qwen3"), model_id="tiny", num_blocks=5, is_kv_quantized=is_kv_quantized)

    allocated = sum(array.nbytes for pool in runner._pools.values() for array in pool.arrays)

    assert 5 * 16 * position_bytes(runner.info.layout, is_quantized=is_kv_quantized) == allocated


@pytest.mark.skipif(mx.metal.is_available(), reason="a GPU has a working set of its own")
def test_node_whose_blocks_do_not_fit_does_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is refused before the blocks are allocated, and told how many would fit."""
    leave(monkeypatch, 40 * BLOCK_BYTES + 5)

    with pytest.raises(ConfigurationError, match=r"num_blocks 41: .* main memory; 40 would, auto takes 4"):
        load_mlx_runner(checkpoint("llama"), model_id="tiny", num_blocks=41)


@pytest.mark.skipif(mx.metal.is_available(), reason="a GPU has a working set of its own")
def test_pool_of_a_model_that_is_loaded_takes_a_quarter_of_what_is_free(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """On a CPU; rows are counted in, and the log says why there are so many blocks."""
    leave(monkeypatch, 180 * BLOCK_BYTES)

    with caplog.at_level(logging.INFO):
        runner = load_mlx_runner(checkpoint("llama"), model_id="tiny", num_blocks=None)

    assert runner.num_blocks == 20
    assert runner.num_blocks_cause in caplog.text
    assert f"num_blocks_chosen num_blocks=20 block_bytes={BLOCK_BYTES} cause='a quarter of the" in caplog.text
    assert runner.forward([Span([5, 6, 7], 0, [19], needs_logits=True)]).argmax()


def test_memory_of_a_gpu_is_its_working_set_less_what_arrays_have(monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights of experts that no step reads are counted, too."""
    monkeypatch.setattr(mx.metal, "is_available", lambda: True)
    monkeypatch.setattr(mx, "device_info", lambda _: {"max_recommended_working_set_size": 384 << 30})
    monkeypatch.setattr(mx, "get_active_memory", lambda: 70 << 30)

    assert memory.device_memory()[1:] == (384 << 30, 70 << 30, 314 << 30, False)


def test_log_says_how_the_memory_is_shared(caplog: pytest.LogCaptureFixture) -> None:
    """Of 18,000 bytes weights get 5,000, blocks 10,000, and rows the 3,000 left: a quarter of what they would like."""
    with caplog.at_level(logging.INFO):
        row_positions(1000, 10, 5000, 18_000)

    assert "device_bytes=18000 model_bytes=5000 block_bytes=10000 row_bytes=3000 row_share=0.24" in caplog.text


@pytest.mark.skipif(mx.metal.is_available(), reason="a GPU has a working set of its own")
def test_a_cpu_gives_what_this_process_may_still_take(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside what MLX's arrays have already; a container's limit is counted, as in the profile of a machine."""
    monkeypatch.setattr("baton.engine.runners.mlx.memory.usable_memory", lambda: Memory(1 << 50, 1 << 40))

    assert 1 << 40 <= device_bytes() < 1 << 41
