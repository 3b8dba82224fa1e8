"""A torch runner is loaded with checked settings, and describes itself."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from baton.engine.runners.base import Span
from baton.engine.runners.torch import load_torch_runner
from baton.errors import ConfigurationError
from baton.kv.layout import KvDtype
from checkpoints import VOCABULARY_SIZE, checkpoint, reference_generate


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
        ({"num_blocks": 10**15}, "cannot be loaded"),
    ],
)
def test_settings_that_cannot_be_met_are_refused_by_name(settings: dict[str, Any], message: str) -> None:
    """The message names the setting and its value."""
    with pytest.raises(ConfigurationError, match=message):
        load_torch_runner(checkpoint("llama"), **{"model_id": "m", "num_blocks": 4, **settings})


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
    assert output == reference_generate(folder, prompt, 32)
    assert output != reference_generate(checkpoint("qwen2"), prompt, 32)


def test_closing_twice_is_allowed() -> None:
    """The second close does nothing."""
    runner = load_torch_runner(checkpoint("llama"), model_id="m", num_blocks=4)

    runner.close()
    runner.close()
