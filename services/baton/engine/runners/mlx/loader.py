"""Loads a model of mlx-lm from a Hugging Face folder so that it computes what transformers computes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import mlx.core as mx
from mlx_lm.utils import load_model

from baton.engine.checkpoint import Checkpoint, rope_parameters
from baton.errors import ConfigurationError

_ACTIVATIONS = ("silu", "swish")


def compute_device() -> mx.Device:
    """Return the GPU where Metal is available, else the CPU."""
    return mx.Device(mx.gpu if mx.metal.is_available() else mx.cpu)


def device_name() -> str:
    """Return the device in words, such as "gpu: Apple M3 Max"."""
    device = compute_device()
    kind = "gpu" if mx.metal.is_available() else "cpu"
    return f"{kind}: {mx.device_info(device).get('device_name', 'unknown')}"


def load_mlx_model(checkpoint: Checkpoint, dtype: mx.Dtype) -> Any:
    """Return an mlx-lm model with its weights in `dtype`, everything evaluated.

    A lazy array can be evaluated only by the thread that made it, and the runner is built and run by different
    threads.

    Raises:
        ConfigurationError: If mlx-lm cannot compute what the configuration asks for.
    """
    activation = checkpoint.config.get("hidden_act", "silu")
    if activation not in _ACTIVATIONS:
        raise ConfigurationError(f"model {checkpoint.directory}: the mlx engine has no hidden_act {activation!r}")
    try:
        model, _ = load_model(checkpoint.directory, model_config=_overrides(checkpoint))
    except (ValueError, KeyError, TypeError, FileNotFoundError) as error:
        raise ConfigurationError(f"model {checkpoint.directory}: mlx-lm cannot load it: {error}") from error
    model.set_dtype(dtype)
    model.eval()
    # Module.parameters() leaves out private arrays such as the rotation's frequencies.
    mx.eval([list(module.values()) for module in model.modules()])
    return model


def _overrides(checkpoint: Checkpoint) -> Mapping[str, Any]:
    """Return what mlx-lm does not read from a configuration written by transformers 5, or defaults differently.

    Most of its models ignore `rope_parameters`; `tie_word_embeddings` defaults to True; `layer_types` without full
    attention is refused, and not needed, since the runner's masks enforce the windows.
    """
    parameters = rope_parameters(checkpoint.config)
    theta = parameters.pop("rope_theta")
    is_scaled = parameters.get("rope_type", "default") != "default"
    return {
        "rope_theta": theta,
        "rope_scaling": parameters if is_scaled else None,
        "tie_word_embeddings": checkpoint.config.get("tie_word_embeddings", checkpoint.is_tied),
        "layer_types": None,
        "sliding_window": None,
    }
