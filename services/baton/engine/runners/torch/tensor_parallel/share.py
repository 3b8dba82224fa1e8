"""Cuts a model into what each rank computes: some heads, some columns of the MLP, some of the vocabulary."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch.nn.functional import pad

from baton.engine.runners.base import ModelInfo
from baton.engine.runners.torch.tensor_parallel.ranks import Ranks
from baton.errors import ConfigurationError


def check_divisible(info: ModelInfo, size: int) -> None:
    """Check that every rank gets as many heads as any other.

    Raises:
        ConfigurationError: If heads or KV heads cannot be shared out evenly.
    """
    counts = {
        "num_attention_heads": info.num_attention_heads,
        "num_key_value_heads": min(spec.num_kv_heads for spec in info.layout.layers),
    }
    for name, count in counts.items():
        if count % size:
            raise ConfigurationError(f"tensor_parallel {size}: the model's {name} {count} is no multiple of it")


def share_of_info(info: ModelInfo, size: int) -> ModelInfo:
    """Return the description of what one rank holds: its KV heads."""
    layers = tuple(replace(spec, num_kv_heads=spec.num_kv_heads // size) for spec in info.layout.layers)
    return replace(info, layout=replace(info.layout, layers=layers))


def take_share(model: Any, ranks: Ranks) -> None:
    """Leave a rank its share of a transformers model that `is_llama_like` has accepted.

    Products whose outputs are heads or columns lose the others' rows; those that take them as inputs lose columns, and
    their sums over all ranks are whole. Embedding and norms stay.
    """
    if ranks.size == 1:
        return
    for layer in model.get_decoder().layers:
        attention, mlp = layer.self_attn, layer.mlp
        for module in (attention.q_proj, attention.k_proj, attention.v_proj, mlp.gate_proj, mlp.up_proj):
            _keep_outputs(module, ranks)
        for module in (attention.o_proj, mlp.down_proj):
            _keep_inputs(module, ranks)
    head = model.get_output_embeddings()
    num_missing = -head.out_features % ranks.size
    head.weight = _frozen(pad(head.weight, (0, 0, 0, num_missing)))  # their logits come last; `LlamaModel` drops them
    _keep_outputs(head, ranks)


def _keep_outputs(module: torch.nn.Linear, ranks: Ranks) -> None:
    module.weight = _frozen(module.weight.chunk(ranks.size, dim=0)[ranks.rank])
    if module.bias is not None:
        module.bias = _frozen(module.bias.chunk(ranks.size)[ranks.rank])
    module.out_features = len(module.weight)


def _keep_inputs(module: torch.nn.Linear, ranks: Ranks) -> None:
    module.weight = _frozen(module.weight.chunk(ranks.size, dim=1)[ranks.rank])
    if module.bias is not None and ranks.rank:
        module.bias = _frozen(torch.zeros_like(module.bias))  # else it would be summed once per rank
    module.in_features = module.weight.shape[1]


def _frozen(tensor: torch.Tensor) -> torch.nn.Parameter:
    return torch.nn.Parameter(tensor.contiguous().clone(), requires_grad=False)
