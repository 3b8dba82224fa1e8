"""Folders with adapters: what is read of them, and what is refused by its name."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from adapters import is_greedy, make_adapter, random_prompt
from baton.engine.checkpoint.lora import LoraFolder, read_adapters
from baton.engine.checkpoint.model_folder import read_checkpoint
from baton.errors import ConfigurationError
from checkpoints import checkpoint
from exactness.handover import generate, greedy, start_engine
from exactness.loading import load_runner

CONFIG: Mapping[str, Any] = {"peft_type": "LORA", "r": 2, "lora_alpha": 6, "target_modules": ["q_proj"]}
MODULE = "base_model.model.model.layers.1.self_attn.q_proj"
SIZES: Mapping[str, tuple[int, int]] = {f"{MODULE}.lora_A.weight": (2, 96), f"{MODULE}.lora_B.weight": (96, 2)}


def write(folder: Path, config: Mapping[str, Any] = CONFIG, sizes: Mapping[str, tuple[int, int]] = SIZES) -> Path:
    """Write an adapter of the tiny llama."""
    folder.mkdir(exist_ok=True)
    (folder / "adapter_config.json").write_text(json.dumps(config))
    save_file(
        {name: np.full(size, 0.5, np.float32) for name, size in sizes.items()}, folder / "adapter_model.safetensors"
    )
    return folder


def read(folder: Path) -> LoraFolder:
    """Read it as the adapter `mine` of the tiny llama."""
    (adapter,) = read_adapters({"mine": folder}, read_checkpoint(checkpoint("llama")))
    return adapter


def test_scale_and_place_of_every_pair_are_read(tmp_path: Path) -> None:
    """One layer has one projection; the others have none. The factor is alpha / r."""
    adapter = read(write(tmp_path))

    assert [list(layer) for layer in adapter.layers] == [[], ["self_attn.q_proj"], [], []]
    assert adapter.layers[1]["self_attn.q_proj"].scale == 3.0
    assert adapter.adapter.name == "mine"


def test_the_digest_is_that_of_what_is_computed(tmp_path: Path) -> None:
    """The same weights with another factor are another adapter; how it was trained is of no account."""
    digest = read(write(tmp_path / "first")).adapter.digest

    assert read(write(tmp_path / "second", {**CONFIG, "lora_dropout": 0.1})).adapter.digest == digest
    assert read(write(tmp_path / "third", {**CONFIG, "lora_alpha": 7})).adapter.digest != digest
    assert read(write(tmp_path / "fourth", {**CONFIG, "use_rslora": True})).adapter.digest != digest


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"peft_type": "IA3"}, "peft_type: expected 'LORA', got 'IA3'"),
        ({"use_dora": True}, "use_dora: is not supported"),
        ({"bias": "all"}, "bias: expected 'none', got 'all'"),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save: is not supported"),
        ({"target_parameters": ["mlp.experts.gate_up_proj"]}, "target_parameters: is not supported"),
        ({"fan_in_fan_out": True}, "fan_in_fan_out: is not supported"),
        ({"init_lora_weights": "pissa"}, "init_lora_weights: 'pissa' changes the model's own weights"),
        ({"target_modules": ["q_proj", "v_proj"]}, "target_modules: .* has nothing for 'v_proj'"),
        ({"r": 4}, r"lora_A.weight: expected \(4, 96\), got \(2, 96\)"),
        ({"r": 0}, "r: expected 1 or more"),
        ({"r": "many"}, "adapter_config.json: invalid literal"),
        ({"rank_pattern": {"(": 2}}, "adapter_config.json: "),
    ],
)
def test_what_is_not_computed_is_refused_by_its_name(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    """The message has the adapter, its folder, and the field."""
    folder = write(tmp_path, {**CONFIG, **changes})

    with pytest.raises(ConfigurationError, match=f"(?s)lora mine: {folder}.*{message}"):
        read(folder)


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({}, "holds no lora_A and lora_B"),
        ({f"{MODULE}.lora_A.weight": (2, 96)}, "lora_A.weight: its counterpart is missing"),
        ({**SIZES, f"{MODULE}.lora_magnitude_vector": (96, 1)}, "tensor .*lora_magnitude_vector: expected base_model"),
        ({name: (size[1], size[0]) for name, size in SIZES.items()}, r"expected \(2, 96\), got \(96, 2\)"),
        ({name.replace("layers.1", "layers.4"): size for name, size in SIZES.items()}, "the model has 4 layers"),
        ({name.replace("q_proj", "qkv_proj"): size for name, size in SIZES.items()}, "the model has no .*qkv_proj"),
        (
            {name.replace("layers.1.self_attn.q_proj", "embed_tokens"): size for name, size in SIZES.items()},
            "target_modules: model.embed_tokens cannot be adapted",
        ),
    ],
)
def test_tensors_that_do_not_fit_the_model_are_refused(
    tmp_path: Path, sizes: dict[str, tuple[int, int]], message: str
) -> None:
    """Each is named."""
    folder = write(tmp_path, sizes=sizes)

    with pytest.raises(ConfigurationError, match=f"lora mine: .*{message}"):
        read(folder)


def test_a_folder_without_an_adapter_is_refused(tmp_path: Path) -> None:
    """Other weight formats than safetensors are not read."""
    with pytest.raises(ConfigurationError, match=r"lora mine: .*: no adapter_config\.json"):
        read(tmp_path)
    (write(tmp_path) / "adapter_model.safetensors").rename(tmp_path / "adapter_model.bin")
    with pytest.raises(ConfigurationError, match=r"lora mine: .*: no adapter_model\.safetensors"):
        read(tmp_path)
    (tmp_path / "adapter_model.safetensors").write_bytes(b"no tensors")
    with pytest.raises(ConfigurationError, match=r"lora mine: .* is not a safetensors file"):
        read(tmp_path)


def test_ranks_and_factors_of_single_projections_are_those_of_peft() -> None:
    """Patterns and `use_rslora` together, and only some of the projections of a fused product."""
    folder = make_adapter(
        "llama",
        5,
        ("k_proj", "v_proj", "up_proj"),
        use_rslora=True,
        rank_pattern={"v_proj": 2, r"layers\.1\..*k_proj": 8},
        alpha_pattern={"up_proj": 20},
    )
    engine = start_engine(load_runner("torch", checkpoint("llama"), adapters={"mine": folder}))
    try:
        prompt = random_prompt(30)
        output = generate(engine, "r", prompt, greedy(8), adapter="mine").tokens()
    finally:
        engine.close()

    assert is_greedy("llama", folder, prompt, output)
    assert not is_greedy("llama", None, prompt, output)
