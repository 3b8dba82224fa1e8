"""Threads and number format are chosen by what the machine has, and explained."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from baton.config.cores import Cores
from baton.decode.settings import DecodeSettings
from baton.demo import checkpoint_dir
from baton.worker.computing import Computing, choose_computing


def choose(folder: Path, flags: str = "", *, num_cores: int = 4, **settings: Any) -> Computing:
    """Choose on a machine whose processor has some abilities."""
    cpu_info = folder / "cpuinfo"
    cpu_info.write_text(f"processor : 0\nflags\t: fpu {flags} avx2\n", encoding="utf-8")
    cores = Cores(num_cores, f"{num_cores} of 64 by the quota")
    return choose_computing(DecodeSettings(model_dir=checkpoint_dir(), **settings), cores, cpu_info)


@pytest.mark.parametrize(("num_cores", "num_threads"), [(1, 1), (2, 1), (8, 7)])
def test_one_core_is_left_to_the_event_loop(tmp_path: Path, num_cores: int, num_threads: int) -> None:
    """A container with a quota of one core has one thread, and the log says where the number is from."""
    chosen = choose(tmp_path, num_cores=num_cores)

    assert chosen.num_threads == num_threads
    assert f"{num_cores} of 64 by the quota" in chosen.threads_cause
    assert "not pinned" in chosen.threads_cause


def test_threads_that_are_asked_for_are_taken(tmp_path: Path) -> None:
    """Also more than there are cores."""
    assert choose(tmp_path, num_threads=9)[:2] == (
        9,
        "num_threads says so; not pinned: they stay where the affinity of the process lets the system move them",
    )


@pytest.mark.parametrize(
    ("flags", "settings", "dtype", "cause"),
    [
        ("amx_bf16 amx_tile", {"dtype": "auto"}, "bfloat16", "the processor has amx_bf16"),
        ("avx512_bf16", {"dtype": "auto"}, "float32", "the processor has no amx_bf16"),
        ("", {"dtype": "auto", "device": "cuda:0"}, "bfloat16", "GPUs"),
        ("", {"dtype": "auto", "engine": "mlx"}, "bfloat16", "MLX"),
        ("amx_bf16", {"dtype": "auto", "engine": "mock"}, "bfloat16", "the processor has amx_bf16"),
        ("amx_bf16", {"dtype": "float32"}, "float32", "dtype says so"),
    ],
)
def test_the_number_format_is_what_the_device_is_fast_at(
    tmp_path: Path, flags: str, settings: dict[str, str], dtype: str, cause: str
) -> None:
    """What is asked for wins; otherwise bfloat16 where products in it are the hardware's own."""
    chosen = choose(tmp_path, flags, **settings)

    assert chosen.dtype == dtype
    assert chosen.dtype_cause.startswith(cause)
