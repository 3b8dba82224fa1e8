"""Folders of packed weights, and the numbers that they stand for, written by torch alone."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from baton.engine.checkpoint.quantization import E2M1
from checkpoints import CheckpointName, checkpoint
from packed_checkpoints import HUB_FORMATS, pair, with_tokenizer

Packed = tuple[dict[str, torch.Tensor], torch.Tensor]
"""Tensors by their names, and the weight that they stand for."""
_GROUP = 32


@cache
def folders(name: CheckpointName, kind: str) -> tuple[Path, Path]:
    """Return a packed folder and its weights unpacked: a format of the hub's, "mlx4", "mlx8", or "mxfp4" of GPT-OSS."""
    if kind in HUB_FORMATS:
        return pair(name, kind)
    root = Path(tempfile.mkdtemp(prefix="baton-packed-", dir=checkpoint(name).parent))
    if kind == "mxfp4":
        return _write(name, root, _experts_mxfp4, {"quantization_config": {"quant_method": "mxfp4"}})
    bits = int(kind.removeprefix("mlx"))
    told = {"quantization": {"group_size": _GROUP, "bits": bits}}
    return _write(name, root, lambda tensor, weight: _affine(tensor, weight, bits), told)


def _write(
    name: CheckpointName, root: Path, pack: Callable[[str, torch.Tensor], Packed | None], told: dict[str, Any]
) -> tuple[Path, Path]:
    plain = load_file(checkpoint(name) / "model.safetensors")
    packed = dict(plain)
    for tensor, weight in list(plain.items()):
        if parts := pack(tensor, weight):
            del packed[tensor]
            packed |= parts[0]
            plain[tensor] = parts[1]
    config = json.loads((checkpoint(name) / "config.json").read_text())
    for place, tensors, more in ((root / "packed", packed, told), (root / "unpacked", plain, {})):
        place.mkdir()
        whole = {tensor: weight.contiguous() for tensor, weight in tensors.items()}
        save_file(whole, place / "model.safetensors", {"format": "pt"})
        (place / "config.json").write_text(json.dumps(config | more))
        with_tokenizer(checkpoint(name), place)
    return root / "packed", root / "unpacked"


def _affine(tensor: str, weight: torch.Tensor, bits: int) -> Packed | None:
    """Pack as MLX does: words of 32 bits, the lowest first, a scale and a bias for each group."""
    if weight.ndim != 2:
        return None
    groups = weight.unflatten(1, (-1, _GROUP))
    low, high = groups.amin(-1), groups.amax(-1)
    scales, biases = ((high - low) / (2**bits - 1)).bfloat16(), low.bfloat16()
    wide, lifted = scales.float()[..., None], biases.float()[..., None]
    codes = ((groups - lifted) / wide).round().clamp(0, 2**bits - 1)
    per_word = 32 // bits
    shifts = torch.arange(per_word) * bits
    words = (codes.flatten(1).long().unflatten(1, (-1, per_word)) << shifts).sum(-1)
    module = tensor.removesuffix(".weight")
    parts = {f"{module}.weight": words.to(torch.uint32), f"{module}.scales": scales, f"{module}.biases": biases}
    return parts, (codes * wide + lifted).flatten(1)


def _experts_mxfp4(tensor: str, weight: torch.Tensor) -> Packed | None:
    """Pack experts [num_experts, num_inputs, num_outputs] as OpenAI does: bytes of two codes, exponents of groups."""
    if not tensor.endswith(("gate_up_proj", "experts.down_proj")):
        return None
    groups = weight.transpose(1, 2).unflatten(2, (-1, _GROUP))
    exponents = groups.abs().amax(-1).log2().floor() - 2
    numbers = torch.from_numpy(E2M1)
    codes = (groups[..., None] / exponents.exp2()[..., None, None] - numbers).abs().argmin(-1)
    bytes_of_two = (codes[..., ::2] | codes[..., 1::2] << 4).to(torch.uint8)
    unpacked = (numbers[codes] * exponents.exp2()[..., None]).flatten(2).transpose(1, 2)
    return {f"{tensor}_blocks": bytes_of_two, f"{tensor}_scales": (exponents + 127).to(torch.uint8)}, unpacked
