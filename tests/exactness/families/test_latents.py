"""What families with latents cache, and what else is theirs alone; `test_matrix.py` has their tokens."""

from __future__ import annotations

import json
import random
from pathlib import Path
from shutil import copytree
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from baton.engine.checkpoint.model_folder import read_checkpoint
from baton.engine.runners.base import Span
from baton.errors import ConfigurationError
from checkpoints import (
    LATENT_NAMES,
    VOCABULARY_SIZE,
    LatentCheckpointName,
    checkpoint,
    reference_generate,
    reference_logits,
)
from exactness.handover import generate, greedy, start_engine
from exactness.loading import Framework, load_runner
from order import RUNS_ALL
from packed_checkpoints import Affine, pair

_PARTS = ("weight", "scales", "biases")
every_family = pytest.mark.parametrize("name", LATENT_NAMES)


def _prompt(length: int, seed: int = 0) -> list[int]:
    return random.Random(seed * 1000 + length).choices(range(3, VOCABULARY_SIZE), k=length)


def _copy(name: LatentCheckpointName, folder: Path, **changes: Any) -> Path:
    copytree(checkpoint(name), folder)
    config = json.loads((folder / "config.json").read_text()) | changes
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@every_family
@pytest.mark.parametrize("framework", ["torch", "mlx"])
def test_logits_are_those_of_transformers(name: LatentCheckpointName, framework: Framework) -> None:
    """Every position, to 1e-4 of the largest, in one pass and by steps over what another pass cached."""
    prompt = _prompt(90)
    expected = reference_logits(checkpoint(name), prompt).numpy()
    runner = load_runner(framework, checkpoint(name), num_blocks=16)

    rows = [runner.forward([Span(prompt, 0, range(6), True, logits_from=0)]).rows()]
    runner.forward([Span(prompt[:80], 0, range(6, 12), False)]).rows()
    rows.append(runner.forward([Span(prompt[80:], 80, range(6, 12), True, logits_from=80)]).rows())

    bound = 1e-4 * abs(expected).max()
    assert abs(rows[0] - expected).max() <= bound
    assert abs(rows[1] - expected[80:]).max() <= bound


@every_family
def test_both_engines_cache_the_same_latents_and_rotated_keys(name: LatentCheckpointName) -> None:
    """One latent and one rotated key a token, of which halves belong together: what a wire of one format carries."""
    prompt, told = _prompt(40), json.loads((checkpoint(name) / "config.json").read_text())
    cached = []
    for framework in ("torch", "mlx"):
        runner = load_runner(framework, checkpoint(name), num_blocks=4)
        runner.forward([Span(prompt, 0, range(3), True)]).argmax()
        cached.append([runner.read_kv(range(3), layer, 0, 40) for layer in range(told["num_hidden_layers"])])

    num_elements = 64 + 16 + told.get("index_head_dim", 0)
    assert runner.info.layout.num_token_bytes() == 4 * num_elements * told["num_hidden_layers"]
    for mine, theirs in zip(*cached, strict=True):
        for part, other in zip(mine, theirs, strict=True):
            expected = np.frombuffer(other, np.float32)
            assert abs(np.frombuffer(part, np.float32) - expected).max() <= 1e-4 * abs(expected).max()


def _kimi(folder: Path, source: Path, *, has_tower: bool) -> Path:
    """Write a folder of DeepSeek's by Kimi's name, which transformers does not know, or within one with a tower."""
    copytree(source, folder)
    told = json.loads((folder / "config.json").read_text()) | {"model_type": "kimi_k2"}
    if has_tower:
        tensors = {f"language_model.{name}": tensor for name, tensor in load_file(folder / "model.safetensors").items()}
        told = {"model_type": "kimi_k25", "text_config": told, "eos_token_id": told["eos_token_id"]}
        if packing := told["text_config"].pop("quantization", None):
            told["quantization"] = packing
        tensors["vision_tower.patch_embed.proj.weight"] = torch.zeros(4, 4)
        save_file(tensors, folder / "model.safetensors", {"format": "mlx"})
    (folder / "config.json").write_text(json.dumps(told))
    return folder


@pytest.mark.parametrize("framework", ["torch", "mlx"] if RUNS_ALL else ["mlx"])
@pytest.mark.parametrize("kind", [None, Affine(4), "compressed-tensors"], ids=str)
@pytest.mark.parametrize("has_tower", [False, True], ids=["K2", "K2.5"])
def test_kimi_is_deepseek_by_another_name(
    framework: Framework, kind: Affine | str | None, has_tower: bool, tmp_path: Path
) -> None:
    """As its folders are packed: int4 by Moonshot, of experts alone."""
    source, unpacked = pair("deepseek_v3", kind) if kind else (checkpoint("deepseek_v3"), checkpoint("deepseek_v3"))
    engine = start_engine(load_runner(framework, _kimi(tmp_path / "kimi", source, has_tower=has_tower)))

    output = generate(engine, "kimi", _prompt(30), greedy(16)).tokens()
    engine.close()

    assert output == reference_generate(unpacked, _prompt(30), 16, guess=output)


def test_old_folders_of_mlx_hold_what_makes_heads_as_one(tmp_path: Path) -> None:
    """mlx-lm would split it and pack the parts anew: another function than the file's, which torch computes."""
    import mlx.core as mx

    source, unpacked = pair("deepseek_v3", Affine(4))
    copytree(source, tmp_path / "old")
    copytree(unpacked, tmp_path / "plain")
    packed, plain = mx.load(str(source / "model.safetensors")), load_file(unpacked / "model.safetensors")
    for name in [name for name in plain if name.endswith("kv_b_proj.weight")]:
        module = name.removesuffix(".kv_b_proj.weight")
        packed = {
            key: part for key, part in packed.items() if not key.startswith((f"{module}.embed", f"{module}.unem"))
        }
        parts = mx.quantize(mx.array(plain[name].numpy()).astype(mx.bfloat16), group_size=32, bits=4)
        packed |= {f"{module}.kv_b_proj.{part}": each for part, each in zip(_PARTS, parts, strict=True)}
        wide = mx.dequantize(parts[0], *(part.astype(mx.float32) for part in parts[1:]), group_size=32, bits=4)
        plain[name] = torch.from_numpy(np.array(wide))
    mx.save_safetensors(str(tmp_path / "old" / "model.safetensors"), packed, {"format": "mlx"})
    save_file(plain, tmp_path / "plain" / "model.safetensors", {"format": "pt"})
    expected = reference_logits(tmp_path / "plain", _prompt(40)).numpy()

    for framework in ("torch", "mlx"):
        runner = load_runner(framework, tmp_path / "old", num_blocks=4)
        rows = runner.forward([Span(_prompt(40), 0, range(3), True, logits_from=0)]).rows()
        assert abs(rows - expected).max() <= 1e-4 * abs(expected).max()


@every_family
def test_layers_that_predict_ahead_are_left_out(name: LatentCheckpointName, tmp_path: Path) -> None:
    """The hub's folders have one behind the last; folders of MLX's do not, and are the same model."""
    folder = _copy(name, tmp_path / "mtp")
    tensors = load_file(folder / "model.safetensors")
    ahead = {tensor.replace(".3.", ".4."): value.clone() for tensor, value in tensors.items() if ".layers.3." in tensor}
    save_file(tensors | ahead, folder / "model.safetensors", {"format": "pt"})

    with_layer, without = read_checkpoint(folder), read_checkpoint(checkpoint(name))
    runner = load_runner("mlx", folder, num_blocks=4)

    assert with_layer.weights_digest(is_full=True) == without.weights_digest(is_full=True)
    assert with_layer.num_parameters == without.num_parameters
    assert np.isfinite(runner.forward([Span(_prompt(20), 0, range(2), True)]).rows()).all()


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("topk_method", "group_limited_greedy"),
        ("scoring_func", "softmax"),
        ("moe_layer_freq", 2),
        ("kv_lora_rank", None),
        ("partial_rotary_factor", 0.5),
    ],
)
def test_variants_are_refused_by_the_name_of_the_field(field: str, value: object, tmp_path: Path) -> None:
    """From the configuration, before any weight is read."""
    with pytest.raises(ConfigurationError, match=f"{field}: .*expected .*, got {value!r}"):
        read_checkpoint(_copy("deepseek_v3", tmp_path / "copy", **{field: value}))


def test_rotations_that_look_beyond_the_position_are_refused(tmp_path: Path) -> None:
    """And those that no engine computes for the family."""
    scaling = {"type": "llama3", "factor": 8.0}

    with pytest.raises(ConfigurationError, match="rope_type: deepseek_v3: expected default or yarn, got 'llama3'"):
        read_checkpoint(_copy("deepseek_v3", tmp_path / "copy", rope_scaling=scaling))


def test_layers_that_share_an_index_are_refused(tmp_path: Path) -> None:
    """mlx-lm has none."""
    for told in ({"indexer_types": ["full", "shared"] * 2}, {"index_topk_freq": 2}, {"index_topk_pattern": "FSFS"}):
        with pytest.raises(ConfigurationError, match=f"{next(iter(told))}: .*expected "):
            read_checkpoint(_copy("glm_moe_dsa", tmp_path / next(iter(told)), **told))


def test_latents_are_not_kept_in_8_bits(tmp_path: Path) -> None:
    """mlx-lm's attention takes them plain."""
    from baton.engine.runners.mlx import load_mlx_runner

    with pytest.raises(ConfigurationError, match=r"kv_quantization: .* deepseek_v3 takes plain K and V alone"):
        load_mlx_runner(checkpoint("deepseek_v3"), model_id="m", num_blocks=4, is_kv_quantized=True)


@pytest.mark.parametrize("framework", ["torch", "mlx"] if RUNS_ALL else ["mlx"])
def test_the_bias_of_experts_stays_in_32_bits(framework: Framework) -> None:
    """Whatever the dtype of activations is: experts are chosen by it."""
    runner: Any = load_runner(framework, checkpoint("deepseek_v3"), dtype="bfloat16", num_blocks=4)

    layer = (
        runner._model._model.model.layers[-1] if framework == "torch" else runner._backbone._surroundings.modules[-1]
    )
    assert str(layer.mlp.gate.e_score_correction_bias.dtype).endswith("float32")
