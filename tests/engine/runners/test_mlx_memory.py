"""How much of the device's memory a node of the mlx engine takes."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

pytest.importorskip("mlx.core")

from baton.engine.runners.mlx import load_mlx_runner
from baton.engine.runners.mlx.memory import free_bytes, position_bytes, row_positions
from baton.errors import ConfigurationError
from checkpoints import checkpoint


def test_rows_have_a_quarter_more_positions_than_the_pool_where_there_is_room() -> None:
    """So it is where the device's memory is unknown, too."""
    assert row_positions(1000, 10, 5000, 50_000) == 1250
    assert row_positions(1000, 10, 5000, 0) == 1250


def test_rows_take_what_model_and_blocks_leave() -> None:
    """Of 18,000 bytes the model has 5,000 and the blocks 10,000: 300 positions are left, or none at all."""
    assert row_positions(1000, 10, 5000, 18_000) == 300
    assert row_positions(1000, 10, 5000, 15_000) == 0


def test_more_blocks_than_fit_are_refused_by_name() -> None:
    """A node that would swap does not start."""
    with pytest.raises(ConfigurationError, match=r"num_blocks: .* 1000 positions of 10 bytes .* 14999 bytes"):
        row_positions(1000, 10, 5000, 14_999)


@pytest.mark.parametrize("is_kv_quantized", [False, True])
def test_bytes_of_a_position_are_those_that_the_blocks_take(is_kv_quantized: bool) -> None:
    """What is planned is what is allocated, as they are or in 8 bits."""
    runner = load_mlx_runner(checkpoint("qwen3"), model_id="tiny", num_blocks=5, is_kv_quantized=is_kv_quantized)

    allocated = sum(array.nbytes for pool in runner._pools for array in pool.arrays)

    assert 5 * 16 * position_bytes(runner.info.layout, is_quantized=is_kv_quantized) == allocated


def test_node_whose_blocks_do_not_fit_does_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is refused before the blocks are allocated."""
    monkeypatch.setattr("baton.engine.runners.mlx.runner.device_bytes", lambda: 1 << 20)
    monkeypatch.setattr("baton.engine.runners.mlx.runner.set_limits", lambda *_: None)

    with pytest.raises(ConfigurationError, match="num_blocks"):
        load_mlx_runner(checkpoint("llama"), model_id="tiny", num_blocks=10**9)


def test_log_says_how_the_memory_is_shared(caplog: pytest.LogCaptureFixture) -> None:
    """Of 18,000 bytes weights get 5,000, blocks 10,000, and rows the 3,000 left: a quarter of what they would like."""
    with caplog.at_level(logging.INFO):
        row_positions(1000, 10, 5000, 18_000)

    assert "device_bytes=18000 weight_bytes=5000 block_bytes=10000 row_bytes=3000 row_share=0.24" in caplog.text


@pytest.mark.parametrize(
    ("limit", "free"), [("max", 9000 * 1024), ("4000000", 1_000_000), ("2000000", 0), (None, 9000 * 1024)]
)
def test_free_memory_is_that_of_the_machine_or_less(limit: str | None, free: int, tmp_path: Path) -> None:
    """A control group may allow less than the machine has; where there is none, the machine counts."""
    meminfo = tmp_path / "proc/meminfo"
    meminfo.parent.mkdir()
    meminfo.write_text("MemTotal:       12000 kB\nMemAvailable:    9000 kB\nHugePages_Total:       0\n")
    if limit is not None:
        group = tmp_path / "sys/fs/cgroup"
        group.mkdir(parents=True)
        (group / "memory.max").write_text(f"{limit}\n")
        (group / "memory.current").write_text("3000000\n")

    assert free_bytes(tmp_path) == free


def test_free_memory_of_other_systems_is_unknown(tmp_path: Path) -> None:
    """Rows are then as many as they would like to be."""
    assert free_bytes(tmp_path) == 0
