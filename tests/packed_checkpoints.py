"""Checkpoints in few bits as hubs have them, and the same weights unpacked by the format's own library."""

from __future__ import annotations

import json
import tempfile
from functools import cache
from pathlib import Path
from shutil import copy
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from safetensors.torch import save_file

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
    experts = json.loads((source / "config.json").read_text()).get("num_local_experts")
    model, config = load_model(source, model_config={"num_experts": experts} if experts else None)
    model.set_dtype(getattr(mx, dtype))
    model, config = quantize_model(
        model, config, group_size=kind.group_size, bits=kind.bits, quant_predicate=packing if kind.is_mixed else None
    )
    save_model(folder, model)
    save_config(config | overrides, folder / "config.json")
    return _with_tokenizer(source, folder)


def unpacked_affine(packed: Path, folder: Path, *, dtype: torch.dtype = torch.float32) -> Path:
    """Write a folder of MLX's format with its weights as `mx.dequantize` makes them in float32, in the hub's names."""
    import mlx.core as mx

    folder.mkdir(exist_ok=True)
    config = json.loads((packed / "config.json").read_text())
    told, _ = config.pop("quantization"), config.pop("quantization_config", None)
    stored = dict(mx.load(str(packed / "model.safetensors")))
    tensors: dict[str, torch.Tensor] = {}
    for name, array in stored.items():
        module = name.removesuffix(".weight")
        if name.endswith((".scales", ".biases")):
            continue
        wide = array
        if f"{module}.scales" in stored:
            kind = told.get(module) or told
            parts = [stored[f"{module}.{part}"].astype(mx.float32) for part in ("scales", "biases")]
            wide = mx.dequantize(array, *parts, group_size=kind["group_size"], bits=kind["bits"])
        tensor = torch.from_numpy(np.array(wide.astype(mx.float32))).to(dtype)
        tensors |= _in_names_of_hub(name, tensor)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config))
    return _with_tokenizer(packed, folder)


@cache
def affine_pair(name: CheckpointName, kind: Affine) -> tuple[Path, Path]:
    """Return a packed folder and its weights unpacked, made on first use, kept for the process."""
    root = Path(tempfile.mkdtemp(prefix="baton-packed-", dir=checkpoint(name).parent))
    packed = affine(name, kind, root / "packed")
    return packed, unpacked_affine(packed, root / "unpacked")


def _in_names_of_hub(name: str, tensor: torch.Tensor) -> dict[str, torch.Tensor]:
    """Return a tensor of MLX's, that of experts one by one."""
    block, _, rest = name.partition("switch_mlp.")
    if not rest:
        return {name: tensor}
    if "block_sparse_moe" in block:
        names = {"gate_proj": "w1", "down_proj": "w2", "up_proj": "w3"}
        rest = f"{names[rest.removesuffix('.weight')]}.weight"
    return {f"{block}experts.{expert}.{rest}": part.clone() for expert, part in enumerate(tensor)}


def _with_tokenizer(source: Path, folder: Path) -> Path:
    for file in (*source.glob("tokenizer*"), *source.glob("generation_config.json"), *source.glob("chat_template*")):
        copy(file, folder)
    return folder
