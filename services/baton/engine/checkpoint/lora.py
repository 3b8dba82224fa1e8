"""What a folder with a LoRA adapter in PEFT's format says, read without any framework, so that both engines agree.

Source: Hu et al., LoRA: Low-Rank Adaptation of Large Language Models, section 4.1: W x + B A x * scale.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

from baton.engine.checkpoint.model_folder import Checkpoint, read_json
from baton.engine.checkpoint.tensor_files import tensor_shapes
from baton.errors import ConfigurationError
from baton.kv.hashing import Adapter

CONFIG_FILE, WEIGHTS_FILE = "adapter_config.json", "adapter_model.safetensors"
PROJECTIONS = (
    "self_attn.q_proj",
    "self_attn.k_proj",
    "self_attn.v_proj",
    "self_attn.qkv_proj",
    "self_attn.o_proj",
    "mlp.gate_proj",
    "mlp.up_proj",
    "mlp.gate_up_proj",
    "mlp.down_proj",
)
"""Parts of a layer that an adapter may change, where the model has them: not embeddings, heads, norms or experts."""

_TENSOR = re.compile(r"base_model\.model\.(?P<module>.+)\.lora_(?P<side>[AB])\.weight")
_MODULE = re.compile(r"model\.layers\.(?P<layer>\d+)\.(?P<projection>.+)")
_EFFECTIVE = ("peft_type", "r", "lora_alpha", "use_rslora", "rank_pattern", "alpha_pattern", "target_modules", "bias")
_OF_TRAINING = (
    *("auto_mapping", "base_model_name_or_path", "inference_mode", "peft_version", "revision", "task_type"),
    *("corda_config", "ephemeral_gpu_offload", "eva_config", "exclude_modules", "init_lora_weights", "layers_pattern"),
    *("layers_to_transform", "loftq_config", "lora_dropout", "lora_ga_config", "megatron_core", "qalora_group_size"),
    *("runtime_config", "ensure_weight_tying"),
)
"""Fields that say how an adapter was trained, or what its tensors say themselves."""
_INITS_THAT_CHANGE_THE_MODEL = ("pissa", "olora", "corda", "loftq", "lora_ga")


@dataclass(frozen=True, slots=True)
class LowRank:
    """What an adapter adds to one projection."""

    rank: int
    """Rows of A and columns of B."""
    scale: float
    down: str
    """Name of A's tensor: [rank, num_inputs]."""
    up: str
    """Name of B's tensor: [num_outputs, rank]."""


@dataclass(frozen=True, slots=True)
class LoraFolder:
    """An adapter that fits its model."""

    adapter: Adapter
    weights_file: Path
    layers: tuple[Mapping[str, LowRank], ...]
    """By layer of the model: what is added, by projection (one of `PROJECTIONS`)."""


def read_adapters(folders: Mapping[str, Path], checkpoint: Checkpoint) -> tuple[LoraFolder, ...]:
    """Read adapters by name; raise ConfigurationError naming one that the model cannot have, and why."""
    if folders and (checkpoint.latents or any(spec.state for spec in checkpoint.layer_specs())):
        raise ConfigurationError(f"lora {', '.join(folders)}: adapters of {checkpoint.family} are not served")
    return tuple(_read_adapter(name, folder, checkpoint) for name, folder in folders.items())


class _RefusedError(Exception):
    """What an adapter has that is not served."""


def _read_adapter(name: str, folder: Path, checkpoint: Checkpoint) -> LoraFolder:
    kind, file = f"lora {name}:", folder / WEIGHTS_FILE
    config = read_json(folder / CONFIG_FILE, is_required=True, kind=kind)
    if not file.is_file():
        raise ConfigurationError(f"{kind} {folder}: no {WEIGHTS_FILE} (other weight formats are not read)")
    try:
        _check_config(config)
        layers = _layers(config, tensor_shapes(file, kind=kind), checkpoint)
    except (ValueError, TypeError, AttributeError, re.error) as error:  # fields of other kinds than PEFT writes
        raise ConfigurationError(f"{kind} {folder}: {CONFIG_FILE}: {error}") from error
    except _RefusedError as error:
        raise ConfigurationError(f"{kind} {folder}: {error}") from error
    return LoraFolder(Adapter(name, _digest(file, layers)), file, layers)


def _check_config(config: Mapping[str, Any]) -> None:
    """Refuse what would be computed otherwise than PEFT does."""
    if config.get("peft_type") != "LORA":
        raise _RefusedError(f"peft_type: expected 'LORA', got {config.get('peft_type')!r}")
    if config.get("bias", "none") != "none":
        raise _RefusedError(f"bias: expected 'none', got {config['bias']!r}: biases are not adapted")
    for field, value in config.items():
        if value and field not in (*_EFFECTIVE, *_OF_TRAINING):
            raise _RefusedError(f"{field}: is not supported, got {json.dumps(value)[:80]}")
    init = config.get("init_lora_weights", True)
    if isinstance(init, str) and init.lower().startswith(_INITS_THAT_CHANGE_THE_MODEL):
        raise _RefusedError(f"init_lora_weights: {init!r} changes the model's own weights, which is not supported")


def _layers(
    config: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]], checkpoint: Checkpoint
) -> tuple[Mapping[str, LowRank], ...]:
    layers: tuple[dict[str, LowRank], ...] = tuple({} for _ in range(int(checkpoint.config["num_hidden_layers"])))
    modules = list(_modules(shapes))
    for module in modules:
        layer, projection = _place(module, len(layers))
        layers[layer][projection] = _low_rank(module, config, shapes, checkpoint)
    if not modules:
        raise _RefusedError(f"{WEIGHTS_FILE} holds no lora_A and lora_B")
    targets = config.get("target_modules") or ()
    for target in () if isinstance(targets, str) else targets:
        if not any(f".{module}".endswith(f".{target}") for module in modules):
            raise _RefusedError(f"target_modules: {WEIGHTS_FILE} has nothing for {target!r}")
    return layers


def _modules(shapes: Mapping[str, tuple[int, ...]]) -> Iterator[str]:
    """Yield the modules that have an A; raise _RefusedError naming a tensor that is no part of a pair."""
    for tensor in sorted(shapes):
        match = _TENSOR.fullmatch(tensor)
        if match is None:
            raise _RefusedError(f"tensor {tensor}: expected base_model.model.MODULE.lora_A.weight or lora_B")
        module, side = match["module"], match["side"]
        if _tensor(module, "B" if side == "A" else "A") not in shapes:
            raise _RefusedError(f"tensor {tensor}: its counterpart is missing")
        if side == "A":
            yield module


def _place(module: str, num_layers: int) -> tuple[int, str]:
    """Return layer and projection of a module's name."""
    match = _MODULE.fullmatch(module)
    if match is None or match["projection"] not in PROJECTIONS:
        known = ", ".join(PROJECTIONS)
        raise _RefusedError(f"target_modules: {module} cannot be adapted; in a layer these can: {known}")
    if int(match["layer"]) >= num_layers:
        raise _RefusedError(f"{module}: the model has {num_layers} layers")
    return int(match["layer"]), match["projection"]


def _low_rank(
    module: str, config: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]], checkpoint: Checkpoint
) -> LowRank:
    weight = checkpoint.tensor_shapes.get(f"{module}.weight")
    if weight is None:
        raise _RefusedError(f"target_modules: the model has no {module}")
    num_outputs, num_inputs = weight
    rank = int(_of_pattern(config, "rank_pattern", module, config.get("r", 8)))
    if rank < 1:
        raise _RefusedError(f"r: expected 1 or more for {module}, got {rank}")
    alpha = float(_of_pattern(config, "alpha_pattern", module, config.get("lora_alpha", 8)))
    low_rank = LowRank(
        rank,
        alpha / (math.sqrt(rank) if config.get("use_rslora") else rank),
        down=_tensor(module, "A"),
        up=_tensor(module, "B"),
    )
    for tensor, expected in ((low_rank.down, (rank, num_inputs)), (low_rank.up, (num_outputs, rank))):
        if shapes[tensor] != expected:
            raise _RefusedError(f"tensor {tensor}: expected {expected}, got {shapes[tensor]}")
    return low_rank


def _of_pattern(config: Mapping[str, Any], field: str, module: str, default: float) -> float:
    """Return a module's own value, if a pattern names it; as PEFT matches them, the first one counts."""
    patterns: Mapping[str, float] = config.get(field) or {}
    return next((value for key, value in patterns.items() if re.match(rf"(.*\.)?({key})$", module)), default)


def _tensor(module: str, side: str) -> str:
    return f"base_model.model.{module}.lora_{side}.weight"


def _digest(file: Path, layers: tuple[Mapping[str, LowRank], ...]) -> str:
    """Return a digest of all tensors and scales: what was trained otherwise but computes the same may differ."""
    scales = [sorted((name, low_rank.scale) for name, low_rank in layer.items()) for layer in layers]
    digest = blake2b(json.dumps(scales).encode(), digest_size=16)
    with file.open("rb") as stream:
        while chunk := stream.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()
