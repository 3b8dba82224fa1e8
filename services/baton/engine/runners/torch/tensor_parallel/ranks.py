"""Ranks in processes: what each holds of a model, some heads, columns and vocabulary, and how shares become whole."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from torch import distributed
from torch.nn.functional import pad

from baton.engine.runners.base import ModelInfo
from baton.errors import ConfigurationError

_TIMEOUT = timedelta(seconds=120)


class ProcessRanks:
    """Ranks in processes of one host, over NCCL between GPUs and gloo between CPUs.

    `meeting_point` is a file that does not exist, the same for all; `device` is the process's own.
    """

    def __init__(self, rank: int, size: int, meeting_point: Path, device: torch.device) -> None:
        self.rank, self.size = rank, size
        self._device = device
        store = distributed.FileStore(str(meeting_point), size)
        backend, bound = ("nccl", {"device_id": device}) if device.type == "cuda" else ("gloo", {})
        distributed.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=_TIMEOUT, **bound)

    def take_share(self, model: Any) -> None:
        """Leave this rank its share of a model."""
        take_share(model, self.rank, self.size)

    def share_of(self, info: ModelInfo) -> ModelInfo:
        """Return the description of what one rank holds: its KV heads."""
        layers = tuple(replace(spec, num_kv_heads=spec.num_kv_heads // self.size) for spec in info.layout.layers)
        return replace(info, layout=replace(info.layout, layers=layers))

    def sum(self, share: torch.Tensor) -> torch.Tensor:
        """Return the sum of all ranks' tensors; the own one is overwritten."""
        share = share.contiguous()
        distributed.all_reduce(share)
        return share

    def join(self, share: torch.Tensor) -> torch.Tensor:
        """Return all ranks' tensors beside each other, along the last dimension."""
        share = share.contiguous()
        gathered = share.new_empty(self.size, *share.shape)
        distributed.all_gather(list(gathered), share)
        return gathered.movedim(0, -2).flatten(-2)

    def least(self, number: int) -> int:
        """Return the least of all ranks' numbers, below 2**63."""
        share = torch.tensor(number, device=self._device)
        distributed.all_reduce(share, distributed.ReduceOp.MIN)
        return int(share.item())

    def close(self) -> None:
        """Leave the group."""
        distributed.destroy_process_group()


def check_divisible(info: ModelInfo, size: int) -> None:
    """Check that heads and KV heads can be shared out evenly to all ranks; raise ConfigurationError if not."""
    counts = {
        "num_attention_heads": info.num_attention_heads,
        "num_key_value_heads": min(spec.num_kv_heads for spec in info.layout.layers),
    }
    for name, count in counts.items():
        if count % size:
            raise ConfigurationError(f"tensor_parallel {size}: the model's {name} {count} is no multiple of it")


def take_share(model: Any, rank: int, size: int) -> None:
    """Leave a rank its share of a transformers model that `llama.support.is_llama_like` has accepted.

    Products whose outputs are heads or columns lose the others' rows; those that take them as inputs lose columns, and
    their sums over all ranks are whole. Embedding and norms stay.
    """
    for layer in model.get_decoder().layers:
        attention, mlp = layer.self_attn, layer.mlp
        for module in (attention.q_proj, attention.k_proj, attention.v_proj, mlp.gate_proj, mlp.up_proj):
            _keep_outputs(module, rank, size)
        for module in (attention.o_proj, mlp.down_proj):
            _keep_inputs(module, rank, size)
    head = model.get_output_embeddings()
    num_missing = -head.out_features % size
    head.weight = _frozen(pad(head.weight, (0, 0, 0, num_missing)))  # their logits come last; `LlamaModel` drops them
    _keep_outputs(head, rank, size)


def _keep_outputs(module: torch.nn.Linear, rank: int, size: int) -> None:
    module.weight = _frozen(module.weight.chunk(size, dim=0)[rank])
    if module.bias is not None:
        module.bias = _frozen(module.bias.chunk(size)[rank])
    module.out_features = len(module.weight)


def _keep_inputs(module: torch.nn.Linear, rank: int, size: int) -> None:
    module.weight = _frozen(module.weight.chunk(size, dim=1)[rank])
    if module.bias is not None and rank:
        module.bias = _frozen(torch.zeros_like(module.bias))  # else it would be summed once per rank
    module.in_features = module.weight.shape[1]


def _frozen(tensor: torch.Tensor) -> torch.nn.Parameter:
    return torch.nn.Parameter(tensor.contiguous().clone(), requires_grad=False)
