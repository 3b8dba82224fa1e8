"""A torch runner is loaded with checked settings, and describes itself."""

from __future__ import annotations

import importlib
import json
import logging
import random
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from baton.config.container_limits import Memory
from baton.engine.kv_cache.pool_size import DeviceMemory
from baton.engine.runners import torch as torch_engine
from baton.engine.runners.base import Span
from baton.engine.runners.torch import load_torch_runner
from baton.engine.runners.torch.ops.device import device_memory
from baton.errors import ConfigurationError
from baton.kv.kv_format import KvDtype
from checkpoints import VOCABULARY_SIZE, checkpoint, reference_generate

BLOCK_BYTES = 16 * 1024
"""K and V of a block of the tiny model in float32."""


def test_runner_describes_itself() -> None:
    """Engine, device, dtype and blocks are those asked for."""
    runner = load_torch_runner(checkpoint("llama"), model_id="tiny", dtype="bfloat16", num_blocks=3, block_tokens=8)

    assert (runner.num_blocks, runner.block_tokens) == (3, 8)
    assert (runner.info.engine, runner.info.layout.model_id) == ("torch", "tiny")
    assert runner.info.layout.dtype is KvDtype.BFLOAT16
    assert runner.info.device.startswith("cpu, ")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"dtype": "int8"}, "dtype 'int8'"),
        ({"device": "gpu"}, "device 'gpu'"),
        ({"device": "cuda:99"}, "device 'cuda:99'"),
        ({"num_blocks": 0}, "num_blocks 0"),
        ({"num_blocks": 10**15}, "num_blocks 1000000000000000: .* do not fit into .* main memory; [0-9]+ would"),
    ],
)
def test_settings_that_cannot_be_met_are_refused_by_name(settings: dict[str, Any], message: str) -> None:
    """The message names the setting and its value."""
    with pytest.raises(ConfigurationError, match=message):
        load_torch_runner(checkpoint("llama"), **{"model_id": "m", "num_blocks": 4, **settings})


def test_pool_of_a_model_that_is_loaded_takes_a_quarter_of_what_is_free(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """On a CPU, where the usual number does not fit into that; the log says why there are so many blocks."""
    monkeypatch.setattr(
        "baton.engine.runners.torch.ops.device.usable_memory", lambda: Memory(1 << 40, 80 * BLOCK_BYTES)
    )

    with caplog.at_level(logging.INFO):
        runner = load_torch_runner(checkpoint("llama"), model_id="m", num_blocks=None)

    assert runner.num_blocks == 20
    assert runner.num_blocks_cause in caplog.text
    assert f"num_blocks_chosen num_blocks=20 block_bytes={BLOCK_BYTES} cause='a quarter of the" in caplog.text
    assert runner.forward([Span([5, 6, 7], 0, [19], needs_logits=True)]).argmax()


def test_memory_of_a_gpu_is_taken_stock_of_when_copies_of_weights_are_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    """What loading has freed goes back to the driver before it is asked what is free."""
    freed = [5]
    monkeypatch.setattr(torch.cuda, "empty_cache", freed.clear)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (60 - sum(freed), 80))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda _: 16 + sum(freed))
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(is_integrated=0))

    assert device_memory(torch.device("cuda:1")) == DeviceMemory("cuda:1", 80, 16, 60, is_main=False)


def test_files_that_were_read_take_nothing_of_a_gpu_that_shares_the_machines_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As a DGX Spark's: its driver says what nothing at all is in, but the kernel gives up the model's file at need."""
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (3, 121))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda _: 16)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(is_integrated=1))
    monkeypatch.setattr("baton.engine.runners.torch.ops.device.machine_memory", lambda: Memory(121, 52))

    assert device_memory(torch.device("cuda")).free_bytes == 52


def test_ranks_on_a_cpu_share_its_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each counts on a part, for all of them take blocks at the same time."""
    monkeypatch.setattr("baton.engine.runners.torch.ops.device.usable_memory", lambda: Memory(100, 80))

    assert device_memory(torch.device("cpu"), num_ranks=4).free_bytes == 20


def test_folder_without_a_model_is_refused(tmp_path: Path) -> None:
    """An empty folder is a configuration error, not a traceback of transformers."""
    with pytest.raises(ConfigurationError, match=r"no config\.json"):
        load_torch_runner(tmp_path, model_id="m", num_blocks=4)


def test_folder_with_a_missing_tensor_is_refused(tmp_path: Path) -> None:
    """Weights that are not in the files are not made up."""
    folder = tmp_path / "incomplete"
    shutil.copytree(checkpoint("llama"), folder)
    tensors = load_file(folder / "model.safetensors")
    del tensors["model.layers.2.mlp.up_proj.weight"]
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})

    with pytest.raises(ConfigurationError, match=r"1 tensors are missing, among them model\.layers\.2\.mlp\.up_proj"):
        load_torch_runner(folder, model_id="m", num_blocks=4)


def test_two_runners_in_one_process_do_not_meet() -> None:
    """Each has its own weights and blocks."""
    first, second = (load_torch_runner(checkpoint("llama"), model_id="m", num_blocks=4) for _ in range(2))
    first.forward([Span([5, 6, 7], 0, [0], needs_logits=False)])

    assert any(first.read_kv([0], 0, 0, 3).keys)
    assert not any(second.read_kv([0], 0, 0, 3).keys)


def test_windows_that_differ_by_layer_are_kept(tmp_path: Path) -> None:
    """A model whose upper layers alone have a sliding window yields transformers' tokens."""
    folder = tmp_path / "mixed"
    shutil.copytree(checkpoint("qwen2"), folder)
    layer_types = ["full_attention", "full_attention", "sliding_attention", "sliding_attention"]
    window = {"use_sliding_window": True, "sliding_window": 24, "max_window_layers": 2, "layer_types": layer_types}
    config = json.loads((folder / "config.json").read_text()) | window
    (folder / "config.json").write_text(json.dumps(config))
    runner = load_torch_runner(folder, model_id="m", num_blocks=8)
    prompt = random.Random(0).choices(range(3, VOCABULARY_SIZE), k=80)

    runner.forward([Span(prompt[:50], 0, range(8), needs_logits=False)])
    output = runner.forward([Span(prompt[50:], 50, range(8), needs_logits=True)]).argmax()
    while len(output) < 32:
        output += runner.forward([Span(output[-1:], 79 + len(output), range(8), needs_logits=True)]).argmax()

    assert [spec.sliding_window_tokens for spec in runner.info.layout.layers] == [0, 0, 24, 24]
    assert output == reference_generate(folder, prompt, 32, guess=output)
    assert output != reference_generate(checkpoint("qwen2"), prompt, 32, guess=output)


def test_closing_twice_is_allowed() -> None:
    """The second close does nothing."""
    runner = load_torch_runner(checkpoint("llama"), model_id="m", num_blocks=4)

    runner.close()
    runner.close()


@pytest.mark.parametrize("version", ["5.0.0", "5.16.1"])
def test_older_transformers_is_refused_by_name(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """When the engine is imported, which is before any weights are read."""
    monkeypatch.setattr(sys.modules["transformers"], "__version__", version)

    with pytest.raises(ConfigurationError, match=f"transformers 5.17 or later, not {version}: .*install"):
        importlib.reload(torch_engine)
