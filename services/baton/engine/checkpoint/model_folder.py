"""What a Hugging Face model folder says about itself, read without any framework, so that both engines say the same."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import astuple, dataclass, replace
from pathlib import Path
from typing import Any

from baton.engine.checkpoint import cached_state
from baton.engine.checkpoint.families import FAMILIES, NOT_SERVED, WRAPPERS, is_computed_with, text_config, text_name
from baton.engine.checkpoint.formats import read_packed
from baton.engine.checkpoint.mamba import multiplied
from baton.engine.checkpoint.quantization import Quantization, read_quantization
from baton.engine.checkpoint.recurrent_state import in_layout_of_hub
from baton.engine.checkpoint.rope import check_rope
from baton.engine.checkpoint.tensor_files import StoredTensor, stored_tensors
from baton.engine.checkpoint.weights import Weight, read_weights, weights_digest
from baton.engine.runners.base import ModelInfo
from baton.errors import ConfigurationError
from baton.kv.kv_format import KvDtype, KvLayout, LayerSpec
from baton.text.tokenizer import tokenizer_digest

_SIZES = ("hidden_size", "max_position_embeddings", "num_attention_heads", "num_hidden_layers", "vocab_size")
_OTHER_WEIGHTS = ("*.gguf", "*.bin", "*.pth", "*.pt", "*.onnx")


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A folder with config.json and safetensors files."""

    directory: Path
    config: Mapping[str, Any]
    eos_token_ids: tuple[int, ...]
    """End tokens, from generation_config.json where it has them, else config.json."""
    weights: Mapping[str, Weight]
    """Every tensor by its name in Hugging Face's folders, as it is computed with, whatever the files hold."""
    quantization: Quantization | None = None
    """How MLX packed the weights; None: they are as they were trained."""
    is_repacked: bool = False
    """Whether the files hold other tensors than `weights`: packed ones, or those of experts stacked."""
    is_wrapped: bool = False
    """Whether the folder has towers for images besides; configuration and weights here are the language model's."""
    is_unpacked: bool = False
    """Whether the engine holds packed weights as numbers of its dtype."""

    @property
    def tensor_shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Return the shape of every tensor."""
        return {name: weight.shape for name, weight in self.weights.items()}

    def weights_digest(self, *, is_full: bool = False) -> str:
        """Return the digest of configuration, end tokens and weights: of some rows of each, or of all."""
        is_tied = bool(self.config.get("tie_word_embeddings", self.is_tied))
        specs = ((*astuple(spec)[:4], *(tensor[:2] for tensor in spec.state)) for spec in self.layer_specs())
        facts = (self.eos_token_ids, self.num_experts, *specs)
        return weights_digest(self.config, facts, self.weights, is_tied=is_tied, is_full=is_full)

    def unpacked(self) -> Checkpoint:
        """Return the same for an engine that holds every weight as if it had not been packed."""
        return replace(self, quantization=None, is_unpacked=self.quantization is not None)

    def weight_rounding(self, dtype: KvDtype) -> str:
        """Return to what an engine that computes in `dtype` rounds weights, as KvLayout.weight_rounding says it."""
        if dtype is KvDtype.FLOAT32:
            return "none"
        own = {KvDtype.BFLOAT16: "BF16", KvDtype.FLOAT16: "F16"}[dtype]
        is_held = not self.is_unpacked and all(weight.dtype == own for weight in self.weights.values())
        return "none" if is_held else dtype.value

    @property
    def family(self) -> str:
        """Return the model type."""
        return str(self.config["model_type"])

    @property
    def head_dim(self) -> int:
        """Return the elements of one attention head, as most layers have it."""
        return cached_state.head_dim(self.config)

    @property
    def latents(self) -> cached_state.Latents | None:
        """Return the widths of attention over latents; None: the model has keys and values."""
        return cached_state.read_latents(self.config)

    @property
    def is_tied(self) -> bool:
        """Return whether the output projection is the embedding."""
        return not any(name.startswith("lm_head") for name in self.tensor_shapes)

    def layer_specs(self) -> tuple[LayerSpec, ...]:
        """Return the cache of every layer."""
        return cached_state.layer_specs(self.config)

    def _num_active_linear_parameters(self) -> int:
        """Return the parameters that multiply a token: of the experts, as many as a token is sent to."""
        sizes = {
            name: math.prod(shape)
            for name, shape in self.tensor_shapes.items()
            if ".layers." in name and len(shape) > 1 and not name.endswith("bias")
        }
        num_expert = sum(size for name, size in sizes.items() if ".experts." in name)
        num_chosen = int(self.config.get("num_experts_per_tok") or self.config.get("top_k_experts") or 0)
        return sum(sizes.values()) - num_expert + num_expert * num_chosen // max(1, self.num_experts)

    def held_bytes(self, dtype: KvDtype) -> int:
        """Return the bytes of all weights, embeddings included, held in `dtype`."""
        return self._weight_bytes(self.num_parameters, dtype)

    @property
    def num_parameters(self) -> int:
        """Return the elements of all tensors."""
        return sum(map(math.prod, self.tensor_shapes.values()))

    def _weight_bytes(self, num_parameters: int, dtype: KvDtype) -> int:
        if self.quantization is None:
            return num_parameters * dtype.num_bytes
        return self.quantization.weight_bytes(num_parameters, dtype.num_bytes)

    @property
    def num_experts(self) -> int:
        """Return the experts of a layer; 0: the model has none."""
        counts = (self.config.get(key) for key in ("num_experts", "num_local_experts", "n_routed_experts"))
        return int(next(filter(None, counts), 0))

    def model_info(self, model_id: str, dtype: KvDtype, *, engine: str, device: str) -> ModelInfo:
        """Return what the rest of Baton must know, for weights and cache held in `dtype`."""
        num_linear = self._num_active_linear_parameters()
        vocabulary_size, hidden_size = int(self.config["vocab_size"]), int(self.config["hidden_size"])
        num_head = vocabulary_size * hidden_size
        return ModelInfo(
            layout=KvLayout(
                model_id,
                self.weights_digest(),
                tokenizer_digest(self.directory),
                self.layer_specs(),
                dtype,
                weight_rounding=self.weight_rounding(dtype),
            ),
            num_linear_parameters=num_linear,
            num_head_parameters=num_head,
            num_attention_heads=int(self.config["num_attention_heads"]),
            head_dim=self.head_dim,
            attention_elements=cached_state.attention_elements(self.config),
            weight_bytes=self._weight_bytes(num_linear + num_head, dtype),
            max_context_tokens=int(self.config["max_position_embeddings"]),
            vocabulary_size=vocabulary_size,
            eos_token_ids=self.eos_token_ids,
            engine=engine,
            device=device,
        )


def read_checkpoint(directory: Path) -> Checkpoint:
    """Read and check a model folder.

    Raises ConfigurationError if the folder is no model, holds no safetensors or broken ones, or its family is not
    supported; the message says what is.
    """
    told = read_json(directory / "config.json", is_required=True)
    config = text_config(told)
    family = str(config.get("model_type"))
    is_wrapped = family != told.get("model_type")
    if family not in FAMILIES:
        problem = f"model_type {family!r} is not supported{f' ({NOT_SERVED[family]})' if family in NOT_SERVED else ''}"
        raise ConfigurationError(f"model {directory}: {problem}; supported are {', '.join((*FAMILIES, *WRAPPERS))}")
    _check_sizes(directory, config)
    check_rope(directory, config)
    cached_state.check_layers(directory, config)
    stored: dict[str, StoredTensor] = {}
    for file in _weight_files(directory):
        stored.update(stored_tensors(file))
    if is_wrapped:
        stored = {own: tensor for name, tensor in stored.items() if (own := text_name(name))}
    stored = {name: tensor for name, tensor in stored.items() if is_computed_with(name, config)}
    end_token_ids = _eos_token_ids(directory, config)
    quantization = read_quantization(str(directory), config)
    is_foreign = quantization is None and bool(config.get("quantization_config"))
    weights = read_packed(str(directory), config, stored) if is_foreign else read_weights(stored, quantization)
    weights = {name: weight for name, weight in weights.items() if not is_beyond(name, config["num_hidden_layers"])}
    given, weights = weights, in_layout_of_hub(weights, family)
    if family == "falcon_h1" and weights is not given:
        config = multiplied(
            directory, config, is_tied=config.get("tie_word_embeddings", "lm_head.weight" not in weights)
        )
    is_repacked = is_foreign or is_wrapped or quantization is not None or weights is not given
    is_repacked = is_repacked or not weights.keys() <= stored.keys()
    return Checkpoint(directory, config, end_token_ids, weights, quantization, is_repacked, is_wrapped)


def _check_sizes(directory: Path, config: Mapping[str, Any]) -> None:
    """Check that the configuration has what the size of a model is computed from."""
    for field in _SIZES:
        value = config.get(field)
        if not isinstance(value, int) or value < 1:
            problem = f"config.json: {field}: expected a whole number above 0, got {json.dumps(value)}"
            raise ConfigurationError(f"model {directory}: {problem}")


def is_beyond(name: str, num_layers: int) -> bool:
    """Return whether a tensor is of a layer after the last, which predicts tokens ahead, and is not computed."""
    match = re.match(r"model\.layers\.(\d+)\.", name)
    return name.startswith("mtp.") or (match is not None and int(match[1]) >= num_layers)


def _weight_files(directory: Path) -> list[Path]:
    """Return the files of the weights, all that the index names, if there is one.

    Raises ConfigurationError if there are none, or one is missing.
    """
    files = sorted(directory.glob("*.safetensors"))
    if not files:
        others = [path.name for kind in _OTHER_WEIGHTS for path in directory.glob(kind)]
        found = f", only {others[0]}: export the model to safetensors" if others else ": was it fetched whole?"
        raise ConfigurationError(f"model {directory}: no *.safetensors file{found}")
    weight_map = read_json(directory / "model.safetensors.index.json").get("weight_map", {})
    named = set(weight_map.values()) if isinstance(weight_map, dict) else set()
    if missing := sorted(named - {file.name for file in files}):
        problem = f"{len(missing)} of {len(named)} weight files are missing, among them {missing[0]}: fetch them"
        raise ConfigurationError(f"model {directory}: {problem}")
    return files


def read_json(path: Path, *, is_required: bool = False, kind: str = "model") -> dict[str, Any]:
    """Return the object in a file of a folder; an empty one where there is no file and none is required.

    Raises ConfigurationError if it is not there, or is no JSON object.
    """
    if not path.is_file():
        if is_required:
            raise ConfigurationError(f"{kind} {path.parent}: no {path.name}")
        return {}
    try:
        value = json.loads(path.read_text())
    except ValueError as error:
        raise ConfigurationError(f"{kind} {path.parent}: {path.name} is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise ConfigurationError(f"{kind} {path.parent}: {path.name} is no JSON object")
    return value


def _eos_token_ids(directory: Path, config: Mapping[str, Any]) -> tuple[int, ...]:
    value = read_json(directory / "generation_config.json").get("eos_token_id", config.get("eos_token_id"))
    if value is None:
        return ()
    return tuple(int(token_id) for token_id in value) if isinstance(value, list) else (int(value),)
