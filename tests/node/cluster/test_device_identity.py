"""Nodes that take each other's time have one device id."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from baton.engine.runners.base import ModelInfo
from baton.node.cluster.description import device_id
from engine.rig import INFO

TORCH = replace(INFO, engine="torch")


def _id(info: ModelInfo, folder: Path, *, boot: str = "a", num_threads: int = 7) -> str:
    boot_id = folder / boot
    boot_id.write_text(f"{boot}\n", encoding="ascii")
    return device_id(info, num_threads=num_threads, num_cores=8, boot_id=boot_id)


def test_processes_on_one_processor_or_accelerator_share_a_device(tmp_path: Path) -> None:
    """Whatever engine they have; on another machine it is another device."""
    gpu = replace(TORCH, accelerator_id="GPU-1")

    assert _id(TORCH, tmp_path) == _id(replace(INFO, engine="mlx"), tmp_path)
    assert _id(gpu, tmp_path) == _id(gpu, tmp_path, num_threads=1)
    assert len({_id(TORCH, tmp_path), _id(TORCH, tmp_path, boot="b"), _id(gpu, tmp_path)}) == 3


def test_what_takes_nobodys_time_is_a_device_of_its_own(tmp_path: Path) -> None:
    """A mock's device is simulated; and two processes with half of the cores each have room beside each other."""
    mock = replace(INFO, engine="mock")

    assert _id(mock, tmp_path) != _id(mock, tmp_path)
    assert _id(TORCH, tmp_path, num_threads=4) != _id(TORCH, tmp_path, num_threads=4)
