"""Makes a torch runner of a Hugging Face folder."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any, Literal

import torch
from transformers import AutoModelForCausalLM
from transformers.utils import logging as transformers_logging

from baton.engine.checkpoint import read_checkpoint
from baton.engine.runners.base import ModelInfo, kv_dtype_of
from baton.engine.runners.torch.attention import ATTENTION_NAME, register_attention
from baton.engine.runners.torch.backbone import Backbone, TransformersModel
from baton.engine.runners.torch.fused.model import FusedModel
from baton.engine.runners.torch.fused.support import is_fusible
from baton.engine.runners.torch.runner import TorchRunner
from baton.engine.runners.torch.static.runner import StaticRunner
from baton.errors import ConfigurationError

log = logging.getLogger(__name__)

ModelCode = Literal["auto", "baton", "transformers"]
"""Whose forward pass computes a model."""

_DTYPES = ("float32", "bfloat16", "float16")


def load_torch_runner(
    directory: Path,
    *,
    model_id: str,
    dtype: str = "float32",
    device: str = "cpu",
    num_blocks: int,
    block_tokens: int = 16,
    num_threads: int | None = None,
    model_code: ModelCode = "auto",
    max_batch_size: int = 64,
    is_static: bool | None = None,
) -> TorchRunner:
    """Load a model folder; nothing is downloaded and no code of the folder is run.

    Args:
        directory: Folder with config.json and safetensors files.
        model_id: Served name.
        dtype: "float32", "bfloat16" or "float16", of weights and cache.
        device: "cpu", "cuda" or "cuda:N".
        num_blocks: Blocks in the KV pool, 1 or more.
        block_tokens: Tokens of one block, 1 or more.
        num_threads: CPU threads of the whole process; None leaves torch's choice.
        model_code: "baton": Baton's own forward pass; "transformers": the family's own; "auto": Baton's where it
            computes the same.
        max_batch_size: Sequences that decode in one pass at most, for buffers that stay where they are.
        is_static: Whether decode runs over such buffers, on CUDA as a captured graph; None: on CUDA, where the model
            is one that Baton computes.

    Raises:
        ConfigurationError: If the folder cannot be served, the device is missing, or model and blocks do not fit.
    """
    torch_device = _device_of(device)
    torch_dtype = _dtype_of(dtype)
    if num_blocks < 1 or block_tokens < 1:
        raise ConfigurationError(f"num_blocks {num_blocks} and block_tokens {block_tokens} must be 1 or more")
    if num_threads is not None:
        torch.set_num_threads(num_threads)
    checkpoint = read_checkpoint(directory)
    if quantization := checkpoint.config.get("quantization_config"):
        method = quantization.get("quant_method")
        raise ConfigurationError(f"model {directory}: quantization_config {method!r}: the torch engine reads none")
    info = checkpoint.model_info(model_id, kv_dtype_of(dtype), engine="torch", device=_describe(torch_device))
    try:
        model = _load_model(directory, torch_dtype, torch_device)
        backbone = _backbone_of(model, info, model_code)
        log.info("model_loaded model=%s code=%s dtype=%s device=%s", model_id, backbone.name, dtype, torch_device)
        sizes = {"num_blocks": num_blocks, "block_tokens": block_tokens}
        if torch_device.type == "cuda" and backbone.is_capturable if is_static is None else is_static:
            return StaticRunner(backbone, info, **sizes, device=torch_device, max_batch_size=max_batch_size)
        return TorchRunner(backbone, info, **sizes, device=torch_device)
    except RuntimeError as error:
        raise ConfigurationError(f"model {directory} with {num_blocks} blocks cannot be loaded: {error}") from error


def _load_model(directory: Path, dtype: torch.dtype, device: torch.device) -> Any:
    register_attention()
    transformers_logging.disable_progress_bar()
    model, report = AutoModelForCausalLM.from_pretrained(
        directory,
        local_files_only=True,
        use_safetensors=True,
        trust_remote_code=False,
        dtype=dtype,
        attn_implementation=ATTENTION_NAME,
        output_loading_info=True,
    )
    if missing := sorted(report["missing_keys"]):  # transformers would go on with random weights
        raise ConfigurationError(f"model {directory}: {len(missing)} tensors are missing, among them {missing[0]}")
    return model.to(device).eval().requires_grad_(False)


def _backbone_of(model: Any, info: ModelInfo, model_code: ModelCode) -> Backbone:
    can_fuse = is_fusible(model)
    if model_code == "baton" and not can_fuse:
        raise ConfigurationError(f"model_code baton: {type(model).__name__} is not a model that it computes; use auto")
    if can_fuse and model_code != "transformers":
        return FusedModel(model, info.layout)
    return TransformersModel(model)


def _device_of(name: str) -> torch.device:
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ConfigurationError(f"device {name!r} is not a device of torch: {error}") from error
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise ConfigurationError(f"device {name!r} is not present; torch sees {torch.cuda.device_count()} CUDA devices")
    return device


def _dtype_of(name: str) -> torch.dtype:
    if name not in _DTYPES:
        raise ConfigurationError(f"dtype {name!r} is not supported; supported are {', '.join(_DTYPES)}")
    return getattr(torch, name)


def _describe(device: torch.device) -> str:
    if device.type == "cuda":
        return str(torch.cuda.get_device_name(device))
    num_threads = torch.get_num_threads()
    return f"{device.type}, {num_threads} thread{'s' if num_threads > 1 else ''}"
