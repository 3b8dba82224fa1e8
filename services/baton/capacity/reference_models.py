"""Shapes of well-known models, for planning without a checkpoint and for checks against published figures.

Source: the `config.json` of each model; parameters counted from the widths written here.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from baton.capacity.cost import ModelShape
from baton.errors import ConfigurationError

BYTES_PER_PARAMETER = 2
"""16-bit weights and cache."""
_FLOATS = ("F64", "F32", "F16", "BF16", "F8")
"""First letters of formats whose numbers workers hold in their own."""


def dense_decoder(
    num_layers: int,
    hidden_size: int,
    intermediate_size: int,
    num_attention_heads: int,
    num_kv_heads: int,
    head_dim: int,
    vocabulary_size: int,
    max_context_tokens: int,
) -> ModelShape:
    """Return the 16-bit shape of a decoder with grouped-query attention and a gated MLP (the Llama family)."""
    attention = 2 * hidden_size * head_dim * (num_attention_heads + num_kv_heads)
    mlp = 3 * hidden_size * intermediate_size
    num_linear_parameters = num_layers * (attention + mlp)
    num_head_parameters = hidden_size * vocabulary_size
    return ModelShape(
        num_layers=num_layers,
        num_linear_parameters=num_linear_parameters,
        num_head_parameters=num_head_parameters,
        num_attention_heads=num_attention_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        weight_bytes=BYTES_PER_PARAMETER * (num_linear_parameters + num_head_parameters),
        kv_bytes_per_token=BYTES_PER_PARAMETER * 2 * num_layers * num_kv_heads * head_dim,
        max_context_tokens=max_context_tokens,
        vocabulary_size=vocabulary_size,
    )


def shape_of_config(config: Mapping[str, Any], weight_bytes: int) -> ModelShape:
    """Return about the shape of a model, by config.json and bytes; raise ConfigurationError if a size lacks."""
    config = {**config, **config.get("text_config", {})}
    try:
        num_heads, hidden = int(config["num_attention_heads"]), int(config["hidden_size"])
        shape = dense_decoder(
            int(config["num_hidden_layers"]),
            hidden,
            int(config.get("intermediate_size") or 4 * hidden),
            num_heads,
            int(config.get("num_key_value_heads") or num_heads),
            int(config.get("head_dim") or hidden // num_heads),
            int(config["vocab_size"]),
            int(config["max_position_embeddings"]),
        )
    except (KeyError, ValueError, TypeError) as error:
        raise ConfigurationError(f"config.json: {error} is needed to tell the size of the model") from error
    return replace(shape, weight_bytes=weight_bytes)


def shape_of_folder(folder: Path, parameter_bytes: int) -> ModelShape:
    """Return about the shape of a model as workers hold it, by config.json and the headers of its safetensors files.

    `parameter_bytes`: of a number in a worker's memory. Packed numbers count as they are stored. Raises OSError,
    and ConfigurationError if a file says nothing of the model.
    """
    folder = folder.expanduser()
    try:
        files = folder.glob("*.safetensors")
        weight_bytes = max(1, sum(_held_bytes(file, parameter_bytes) for file in files))
        shape = shape_of_config(json.loads((folder / "config.json").read_text("utf-8")), weight_bytes)
    except (ValueError, LookupError, AttributeError, TypeError, struct.error) as error:
        raise ConfigurationError(f"model {folder}: a file is damaged: {error}") from error
    return replace(shape, kv_bytes_per_token=shape.kv_bytes_per_token * parameter_bytes // BYTES_PER_PARAMETER)


def _held_bytes(file: Path, parameter_bytes: int) -> int:
    with file.open("rb") as stream:
        (num_bytes,) = struct.unpack("<Q", stream.read(8))
        header = json.loads(stream.read(min(num_bytes, file.stat().st_size)))  # any eight bytes are a length
    return sum(
        math.prod(each["shape"]) * parameter_bytes
        if each["dtype"].startswith(_FLOATS)
        else each["data_offsets"][1] - each["data_offsets"][0]
        for name, each in header.items()
        if name != "__metadata__"
    )


# Layers, sizes of hidden state and MLP, heads, KV heads, a head's size, vocabulary, longest context.
LLAMA_3_1_8B = dense_decoder(32, 4096, 14336, 32, 8, 128, 128256, 131072)
LLAMA_3_1_70B = dense_decoder(80, 8192, 28672, 64, 8, 128, 128256, 131072)
LLAMA_2_7B = dense_decoder(32, 4096, 11008, 32, 32, 128, 32000, 4096)
LLAMA_65B = dense_decoder(80, 8192, 22016, 64, 64, 128, 32000, 2048)
QWEN3_0_6B = dense_decoder(28, 1024, 3072, 16, 8, 128, 151936, 40960)

REFERENCE_MODELS = {
    "llama-2-7b": LLAMA_2_7B,
    "llama-65b": LLAMA_65B,
    "llama-3.1-8b": LLAMA_3_1_8B,
    "llama-3.1-70b": LLAMA_3_1_70B,
    "qwen3-0.6b": QWEN3_0_6B,
}
"""By name."""
