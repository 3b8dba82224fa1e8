"""Adapters on torch: what they add to the products of the rows that ask for them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import torch
from safetensors.torch import load_file

from baton.engine.checkpoint.lora import LoraFolder
from baton.engine.runners.torch.ops.pool import upload


class AdaptedRows(NamedTuple):
    """Rows of a pass that are computed with one adapter."""

    adapter: str
    rows: torch.Tensor | None
    """[num_rows], int64; None: all."""


class LowRankWeights(NamedTuple):
    """What an adapter adds to one projection of rows: `rows @ down @ up`."""

    down: torch.Tensor
    """[num_inputs, rank]."""
    up: torch.Tensor
    """[rank, num_outputs], scaled."""


AdapterLayers = Mapping[str, Sequence[Mapping[str, LowRankWeights]]]
"""By adapter and layer: what is added, by projection (`baton.engine.checkpoint.lora.PROJECTIONS`)."""

NO_ADAPTERS: AdapterLayers = {}
"""The model alone."""


class Additions:
    """What all adapters add to projections of one input whose outputs lie side by side."""

    def __init__(self, adapters: AdapterLayers, layer: int, sizes: Mapping[str, int]) -> None:
        self._pairs: dict[str, LowRankWeights] = {}
        for name, layers in adapters.items():
            if any(projection in layers[layer] for projection in sizes):
                self._pairs[name] = _joined(layers[layer], sizes)

    def add(self, output: torch.Tensor, rows: torch.Tensor, adapted: Sequence[AdaptedRows]) -> None:
        """Add to [num_rows, num_outputs] what the adapters make of [num_rows, num_inputs]."""
        for adapter, indices in adapted:
            pair = self._pairs.get(adapter)
            if pair is None:
                continue
            if indices is None:
                output.addmm_(rows @ pair.down, pair.up)
            else:
                output.index_add_(0, indices, rows[indices] @ pair.down @ pair.up)


def adapted_rows(segments: Iterable[tuple[str, range]], num_rows: int, device: torch.device) -> tuple[AdaptedRows, ...]:
    """Return which rows of a pass have which adapter; rows without one are in none of them."""
    by_adapter: dict[str, list[int]] = {}
    for adapter, rows in segments:
        if adapter:
            by_adapter.setdefault(adapter, []).extend(rows)
    return tuple(
        AdaptedRows(adapter, None if len(rows) == num_rows else upload(rows, device, torch.int64))
        for adapter, rows in by_adapter.items()
    )


def load_adapter(folder: LoraFolder, dtype: torch.dtype, device: torch.device) -> list[dict[str, LowRankWeights]]:
    """Load the weights of an adapter, layer by layer; they are scaled in float32, then rounded."""
    tensors = load_file(folder.weights_file)
    return [
        {
            projection: LowRankWeights(
                tensors[low_rank.down].t().to(device, dtype).contiguous(),
                (tensors[low_rank.up].float().t() * low_rank.scale).to(device, dtype).contiguous(),
            )
            for projection, low_rank in layer.items()
        }
        for layer in folder.layers
    ]


def _joined(pairs: Mapping[str, LowRankWeights], sizes: Mapping[str, int]) -> LowRankWeights:
    """Return several pairs of the same input as one: the outputs of each depend on its own inner columns alone."""
    present = [pairs[projection] for projection in sizes if projection in pairs]
    down = torch.cat([pair.down for pair in present], dim=1)
    up = down.new_zeros(down.shape[1], sum(sizes.values()))
    column = row = 0
    for projection, size in sizes.items():
        if projection in pairs:
            rank = len(pairs[projection].up)
            up[row : row + rank, column : column + size] = pairs[projection].up
            row += rank
        column += size
    return LowRankWeights(down, up)
