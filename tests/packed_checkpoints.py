"""Checkpoints in few bits as hubs have them, and the same weights unpacked by the format's own library."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from shutil import copy
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from safetensors.torch import load_file, save_file

from baton.engine.checkpoint.families import text_config
from checkpoints import CheckpointName, checkpoint


class Affine(NamedTuple):
    """MLX's own format."""

    bits: Literal[2, 3, 4, 5, 6, 8]
    group_size: Literal[32, 64, 128] = 32
    is_mixed: bool = False
    """Whether value and down projections have 8 bits, as in mlx-community's mixed folders."""


def affine(name: CheckpointName, kind: Affine, folder: Path, *, dtype: str = "bfloat16", **overrides: object) -> Path:
    """Write a checkpoint as `mlx_lm.convert -q` does: scales and what is not packed in `dtype`."""
    import mlx.core as mx
    from mlx_lm.utils import load_model, quantize_model, save_config, save_model

    def packing(path: str, _module: Any) -> bool | dict[str, int]:
        is_wide = kind.is_mixed and path.endswith(("v_proj", "down_proj"))
        return {"group_size": kind.group_size, "bits": 8} if is_wide else True

    source = checkpoint(name)
    told = json.loads((source / "config.json").read_text())
    rope = told.get("rope_parameters", {})
    flat = {key: rope[key] for key in ("partial_rotary_factor",) if key in rope}
    if name == "lfm2":
        flat["block_dim"] = told["hidden_size"]
    if experts := told.get("num_local_experts"):
        flat["num_experts"] = experts
    if "rope_scaling" not in told and name != "nemotron_h":
        flat["rope_scaling"] = None
    if text := told.get("text_config"):
        text = {**text_config(told), "tie_word_embeddings": told["tie_word_embeddings"]}
        flat |= {"text_config": text, "vocab_size": text["vocab_size"]}
    model, config = load_model(source, model_config=flat)
    model.set_dtype(getattr(mx, dtype))
    model, config = quantize_model(model, config, group_size=kind.group_size, bits=kind.bits, quant_predicate=packing)
    save_model(folder, model)
    if text:
        packing_told = {key: config[key] for key in ("quantization", "quantization_config")}
        (folder / "config.json").write_text(json.dumps(told | packing_told | overrides))
        whole = load_file(source / "model.safetensors")
        tower = {name.replace("model.visual", "vision_tower"): whole[name] for name in whole if "vis" in name}
        save_file(tower, folder / "model-tower.safetensors", {"format": "pt"})
        (folder / "model.safetensors.index.json").unlink()
    else:
        save_config(config | overrides, folder / "config.json")
    return with_tokenizer(source, folder)


def unpacked_affine(packed: Path, folder: Path, *, dtype: torch.dtype = torch.float32) -> Path:
    """Write a folder of MLX's format with its weights as `mx.dequantize` makes them in float32, in the hub's names."""
    import mlx.core as mx

    folder.mkdir(exist_ok=True)
    config = json.loads((packed / "config.json").read_text())
    told, _ = config.pop("quantization"), config.pop("quantization_config", None)
    stored = dict(mx.load(str(packed / "model.safetensors")))
    is_hybrid = any("conv" in name for name in stored)
    tensors: dict[str, torch.Tensor] = {}
    for name, array in stored.items():
        module = name.removesuffix(".weight")
        if name.endswith((".scales", ".biases")):
            continue
        wide = array
        if f"{module}.scales" in stored:
            kind = told.get(module) or told
            if kind.get("mode", "affine") == "affine":
                parts = [stored[f"{module}.{part}"].astype(mx.float32) for part in ("scales", "biases")]
                wide = mx.dequantize(array, *parts, group_size=kind["group_size"], bits=kind["bits"])
            else:
                wide = mx.dequantize(array, stored[f"{module}.scales"], mode=kind["mode"], dtype=mx.float32)
        tensor = torch.from_numpy(np.array(wide.astype(mx.float32))).to(dtype)
        if is_hybrid and name.endswith(("conv1d.weight", "conv.conv.weight")):
            tensor = tensor.transpose(1, 2).contiguous()
        if config["model_type"].startswith(("qwen3_next", "qwen3_5")) and name.endswith(_OFFSET_NORMS):
            tensor = tensor - 1
        if config["model_type"] == "falcon_h1":
            tensor = tensor / _factor_of_falcon(config, name)
        tensors |= _in_names_of_hub(name, tensor)
    for name in [name for name in tensors if name.endswith("embed_q.weight")]:
        keys, values = tensors.pop(name).mT, tensors.pop(name.replace("embed_q", "unembed_out"))
        tensors[name.replace("embed_q", "kv_b_proj")] = torch.cat([keys, values], 1).flatten(0, 1)
    for name in [name for name in tensors if name.endswith(".switch_glu.gate_proj.weight")]:
        others = tensors.pop(name.replace("gate_proj", "up_proj"))
        tensors[name.replace("switch_glu.gate_proj.weight", "gate_up_proj")] = torch.cat([tensors.pop(name), others], 1)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config))
    return with_tokenizer(packed, folder)


def _factor_of_falcon(config: dict[str, Any], name: str) -> float | torch.Tensor:
    """Return what mlx-lm has multiplied a weight by when it wrote the folder."""
    told = {key.removesuffix("_multiplier"): value for key, value in config.items()}
    gate, down = told["mlp_multipliers"]
    factors = {"embed_tokens": told["embedding"], "lm_head": told["lm_head"], "o_proj": told["attention_out"]}
    factors |= {"out_proj": told["ssm_out"], "gate_proj": gate, "down_proj": down}
    if name.endswith("in_proj.weight"):
        states = told["mamba_n_groups"] * told["mamba_d_state"]
        sizes = (told["mamba_d_ssm"], told["mamba_d_ssm"], states, states, told["mamba_n_heads"])
        parts = zip(sizes, told["ssm_multipliers"], strict=True)
        return torch.cat([torch.full((size, 1), told["ssm_in"] * value) for size, value in parts])
    return float(factors.get(name.removesuffix(".weight").rpartition(".")[2], 1.0))


_OFFSET_NORMS = ("layernorm.weight", "model.norm.weight", ".q_norm.weight", ".k_norm.weight")
"""Norms that MLX keeps as 1 + weight."""
MICRO_MODES = ("mxfp4", "mxfp8", "nvfp4")
HUB_FORMATS = ("fp8", "fp8_tensor", "compressed-tensors", "awq", "gptq", "gptq_v2")


def micro(name: CheckpointName, mode: str, folder: Path) -> Path:
    """Write a checkpoint as `mlx_lm.convert -q --q-mode` does in a format of floats with small scales."""
    from mlx_lm.utils import load_model, quantize_model, save_config, save_model

    model, config = load_model(checkpoint(name))
    model, config = quantize_model(model, config, group_size=None, bits=None, mode=mode)
    save_model(folder, model)
    save_config(config, folder / "config.json")
    return with_tokenizer(checkpoint(name), folder)


def openai_mxfp4(name: CheckpointName, folder: Path, unpacked: Path) -> None:
    """Write GPT-OSS as OpenAI does, and as transformers unpacks it."""
    import mlx.core as mx
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors

    source = checkpoint(name)
    config = json.loads((source / "config.json").read_text())
    tensors = load_file(source / "model.safetensors")
    packed = dict(tensors)
    for tensor in [tensor for tensor in tensors if tensor.endswith(("gate_up_proj", "experts.down_proj"))]:
        turned = packed.pop(tensor).transpose(1, 2).contiguous()
        words, exponents = (np.array(part) for part in mx.quantize(mx.array(turned.numpy()), mode="mxfp4"))
        num_experts, num_outputs, num_inputs = turned.shape
        blocks = torch.from_numpy(words.view(np.uint8).reshape(num_experts, num_outputs, num_inputs // 32, 16))
        packed |= {f"{tensor}_blocks": blocks, f"{tensor}_scales": torch.from_numpy(exponents)}
        tensors[tensor] = convert_moe_packed_tensors(blocks, torch.from_numpy(exponents), dtype=torch.float32)
    for place, content in ((folder, packed), (unpacked, tensors)):
        place.mkdir(parents=True)
        save_file(
            {name: tensor.contiguous() for name, tensor in content.items()},
            place / "model.safetensors",
            {"format": "pt"},
        )
        told = config | ({"quantization_config": {"quant_method": "mxfp4"}} if content is packed else {})
        (place / "config.json").write_text(json.dumps(told))
        with_tokenizer(source, place)


def openai_q8(folder: Path) -> Path:
    """Write GPT-OSS as mlx-community does: experts as OpenAI packs them, all else in 8 bits."""
    from mlx_lm.utils import load_model, quantize_model, save_config, save_model

    source = pair("gpt_oss", "openai")[0]
    model, config = load_model(source)
    wide = {"group_size": 32, "bits": 8}
    model, config = quantize_model(model, config, **wide, quant_predicate=lambda _path, _module: wide)
    save_model(folder, model)
    modules = [name.removesuffix(".biases") for name in load_file(folder / "model.safetensors") if ".biases" in name]
    told = {"group_size": 32, "bits": 4, "mode": "mxfp4"} | dict.fromkeys(modules, wide)
    save_config(config | {"quantization": told, "quantization_config": told}, folder / "config.json")
    return with_tokenizer(source, folder)


def unpacked_openai_q8(packed: Path, folder: Path) -> Path:
    """Write the same unpacked, the experts' tensors as transformers has them."""
    tensors = load_file(unpacked_affine(packed, folder) / "model.safetensors")
    for name in [name for name in tensors if ".experts.gate_proj." in name]:
        gates, others = tensors.pop(name), tensors.pop(name.replace("gate_proj", "up_proj"))
        down = tensors.pop(name.replace("gate_proj", "down_proj"))
        joined = torch.stack([gates, others], 2).flatten(1, 2)
        end = "" if name.endswith("weight") else "_bias"
        base = name.partition("gate_proj")[0]
        tensors[f"{base}gate_up_proj{end}"] = joined if end else joined.transpose(1, 2).contiguous()
        tensors[f"{base}down_proj{end}"] = down if end else down.transpose(1, 2).contiguous()
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    return folder


def hub_format(name: CheckpointName, method: str, folder: Path, unpacked: Path) -> None:
    """Write a checkpoint in a format of the hub's, and the numbers that its definition gives."""
    source = checkpoint(name)
    config = json.loads((source / "config.json").read_text())
    packed, plain = {}, load_file(source / "model.safetensors")
    for tensor, weight in list(plain.items()):
        is_left = method == "compressed-tensors" and name == "deepseek_v3" and ".experts." not in tensor
        if ".layers." not in tensor or weight.ndim != 2 or tensor.endswith(".mlp.gate.weight") or is_left:
            packed[tensor] = weight
            continue
        parts, plain[tensor] = _PACKERS[method](weight)
        packed |= {f"{tensor.removesuffix('weight')}{part}": value.contiguous() for part, value in parts.items()}
    for place, content in ((folder, packed), (unpacked, plain)):
        place.mkdir(parents=True)
        save_file(content, place / "model.safetensors", {"format": "pt"})
        told = config | ({"quantization_config": _CONFIGS[method]} if content is packed else {})
        (place / "config.json").write_text(json.dumps(told))
        with_tokenizer(source, place)


Parts = tuple[dict[str, torch.Tensor], torch.Tensor]
"""Tensors of a packed weight by the end of their names, and what they stand for."""
_AWQ_ORDER = [0, 2, 4, 6, 1, 3, 5, 7]
_CONFIGS: dict[str, dict[str, Any]] = {
    "fp8": {"quant_method": "fp8", "weight_block_size": [128, 128], "activation_scheme": "dynamic"},
    "compressed-tensors": {
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "config_groups": {
            "group_0": {
                "input_activations": None,
                "weights": {"num_bits": 4, "type": "int", "symmetric": True, "dynamic": False, "group_size": 32},
            }
        },
    },
    "fp8_tensor": {"quant_method": "fp8", "weight_block_size": None, "activation_scheme": "static"},
    "awq": {"quant_method": "awq", "bits": 4, "group_size": 64, "zero_point": True, "version": "gemm"},
    "gptq": {"quant_method": "gptq", "bits": 4, "group_size": 64, "desc_act": False, "sym": False},
    "gptq_v2": {"quant_method": "gptq", "bits": 4, "group_size": 64, "desc_act": False, "checkpoint_format": "gptq_v2"},
}


def _fp8(weight: torch.Tensor) -> Parts:
    num_outputs, num_inputs = weight.shape
    blocks = (-(-num_outputs // 128), -(-num_inputs // 128))
    scales = torch.tensor(
        [
            [
                float(weight[128 * row : 128 * row + 128, 128 * column : 128 * column + 128].abs().max()) / 448
                for column in range(blocks[1])
            ]
            for row in range(blocks[0])
        ]
    )
    wide = scales.repeat_interleave(128, 0).repeat_interleave(128, 1)[:num_outputs, :num_inputs]
    codes = (weight / wide).to(torch.float8_e4m3fn)
    return {"weight": codes, "weight_scale_inv": scales}, codes.float() * wide


def _fp8_by_tensor(weight: torch.Tensor) -> Parts:
    scale = (weight.abs().max() / 448).bfloat16()
    codes = (weight / scale.float()).to(torch.float8_e4m3fn)
    parts = {"weight": codes, "weight_scale_inv": scale, "activation_scale": torch.tensor(0.5)}
    return parts, codes.float() * scale.float()


def _compressed_tensors(weight: torch.Tensor) -> Parts:
    groups = weight.unflatten(1, (-1, 32))
    scales = (groups.abs().amax(-1) / 7).bfloat16()
    codes = (groups / scales.float()[..., None]).round().clamp(-8, 7)
    unpacked = (codes * scales.float()[..., None]).flatten(1)
    words = _words_along((codes + 8).flatten(1).to(torch.int64))
    return {"weight_packed": words, "weight_scale": scales, "weight_shape": torch.tensor(weight.shape)}, unpacked


def _zero_points(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return codes [outputs, groups, 64], zeros and scales [outputs, groups], and what they stand for."""
    groups = weight.unflatten(1, (-1, 64))
    low, high = groups.amin(-1).clamp(max=0), groups.amax(-1).clamp(min=0)
    scales = ((high - low) / 15).half()
    zeros = (-low / scales.float()).round().clamp(1, 15)
    codes = (groups / scales.float()[..., None] + zeros[..., None]).round().clamp(0, 15)
    return codes, zeros, scales, ((codes - zeros[..., None]) * scales.float()[..., None]).flatten(1)


def _awq(weight: torch.Tensor) -> Parts:
    codes, zeros, scales, unpacked = _zero_points(weight)

    def words(values: torch.Tensor) -> torch.Tensor:  # [rows, outputs]
        eights = values.to(torch.int64).unflatten(1, (-1, 8))
        packed = sum(eights[..., output] << 4 * place for place, output in enumerate(_AWQ_ORDER))
        return _int32(packed)  # type: ignore[arg-type]

    parts = {"qweight": words(codes.flatten(1).T), "qzeros": words(zeros.T), "scales": scales.T}
    return parts, unpacked


def _gptq(weight: torch.Tensor, offset: int = 1) -> Parts:
    codes, zeros, scales, unpacked = _zero_points(weight)
    order = torch.arange(weight.shape[1], dtype=torch.int32) // 64
    parts = {"qweight": _words_along(codes.flatten(1).to(torch.int64)).T, "scales": scales.T, "g_idx": order}
    return parts | {"qzeros": _words_along((zeros.T - offset).to(torch.int64))}, unpacked


def _words_along(codes: torch.Tensor) -> torch.Tensor:
    """Return codes [rows, columns] as words of eight, the first in the lowest bits."""
    eights = codes.unflatten(1, (-1, 8))
    return _int32(sum(eights[..., place] << 4 * place for place in range(8)))  # type: ignore[arg-type]


def _int32(words: torch.Tensor) -> torch.Tensor:
    return torch.where(words >= 1 << 31, words - (1 << 32), words).to(torch.int32)


_PACKERS: dict[str, Callable[[torch.Tensor], Parts]] = {
    "fp8": _fp8,
    "fp8_tensor": _fp8_by_tensor,
    "compressed-tensors": _compressed_tensors,
    "awq": _awq,
    "gptq": _gptq,
    "gptq_v2": lambda weight: _gptq(weight, 0),
}


@cache
def pair(name: CheckpointName, kind: Affine | str) -> tuple[Path, Path]:
    """Return a packed folder and its weights unpacked, made on first use, kept for the process."""
    if isinstance(kind, Affine):
        return affine_pair(name, kind)
    root = Path(tempfile.mkdtemp(prefix="baton-packed-", dir=checkpoint(name).parent))
    packed, unpacked = root / "packed", root / "unpacked"
    if kind in MICRO_MODES:
        return micro(name, kind, packed), unpacked_affine(packed, unpacked)
    if kind == "openai":
        openai_mxfp4(name, packed, unpacked)
    elif kind == "openai-q8":
        return openai_q8(packed), unpacked_openai_q8(packed, unpacked)
    else:
        hub_format(name, kind, packed, unpacked)
    return packed, unpacked


@cache
def affine_pair(name: CheckpointName, kind: Affine) -> tuple[Path, Path]:
    """Return a packed folder and its weights unpacked, made on first use, kept for the process."""
    root = Path(tempfile.mkdtemp(prefix="baton-packed-", dir=checkpoint(name).parent))
    packed = affine(name, kind, root / "packed")
    return packed, unpacked_affine(packed, root / "unpacked")


def _in_names_of_hub(name: str, tensor: torch.Tensor) -> dict[str, torch.Tensor]:
    """Return a tensor of MLX's, that of experts one by one."""
    name = name.replace("language_model.model.", "model.language_model.").replace("language_model.lm_head", "lm_head")
    name = name.replace(".switch_glu.down_proj.weight", ".down_proj")
    block, _, rest = name.partition("switch_mlp.")
    if not rest:
        return {name: tensor}
    rest = rest.replace("fc1.", "up_proj.").replace("fc2.", "down_proj.")
    if "block_sparse_moe" in block:
        names = {"gate_proj": "w1", "down_proj": "w2", "up_proj": "w3"}
        rest = f"{names[rest.removesuffix('.weight')]}.weight"
    return {f"{block}experts.{expert}.{rest}": part.clone() for expert, part in enumerate(tensor)}


def with_tokenizer(source: Path, folder: Path) -> Path:
    """Copy what a folder has beside weights and configuration; return the folder."""
    for file in (*source.glob("tokenizer*"), *source.glob("generation_config.json"), *source.glob("chat_template*")):
        copy(file, folder)
    return folder
