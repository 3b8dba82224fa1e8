"""Adapters on MLX: modules of mlx-lm whose products have what adapters add, row by row."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, cast

import mlx.core as mx
import mlx.nn as nn

from baton.engine.checkpoint.lora import PROJECTIONS, LoraFolder, LowRank
from baton.engine.checkpoint.model_folder import Checkpoint
from baton.engine.runners.mlx.modules.llama_layers import FusedAttention, FusedMlp


class MlxLowRankWeights(NamedTuple):
    """What an adapter adds to projections of one input, their outputs side by side: `rows @ down @ up`."""

    down: mx.array
    """[num_inputs, rank]."""
    up: mx.array
    """[rank, num_outputs], scaled."""


class AdapterChoice:
    """Which adapters, by the order of `names`, the rows of a pass have, for all adapted projections of a model."""

    def __init__(self, names: Sequence[str] = ()) -> None:
        self._indices = {name: index for index, name in enumerate(names)}
        self.rows: int | mx.array | None = None
        """None: no row has one; a number: all rows have that one; else [num_adapters, num_rows, 1], bool."""

    def choose(self, adapters: Sequence[str]) -> None:
        """Say which adapter each row has, by name, or nothing; none at all: no row has one."""
        if not any(adapters):
            self.rows = None
        elif len(set(adapters)) == 1:
            self.rows = self._indices[adapters[0]]
        else:
            indices = mx.array([self._indices.get(name, -1) for name in adapters])
            self.rows = (mx.arange(len(self._indices))[:, None] == indices)[:, :, None]


class AdaptedLinear(nn.Module):  # type: ignore[misc] # mlx has no types for it
    """A projection with what adapters add to it.

    Where rows differ in their adapters, all adapters are computed for all rows, and what a row does not have is put to
    zero: few rows take as long as reading the adapters, whichever they have. `pairs` has one per adapter, of one rank.
    """

    def __init__(self, base: Any, pairs: Sequence[MlxLowRankWeights], choice: AdapterChoice) -> None:
        super().__init__()
        self.base = base
        self.down = mx.stack([pair.down for pair in pairs])
        self.up = mx.stack([pair.up for pair in pairs])
        self._choice = choice

    def __call__(self, rows: mx.array) -> mx.array:
        """Return the outputs for [num_rows, num_tokens, num_inputs]; one token where adapters differ."""
        output: mx.array = self.base(rows)
        chosen = self._choice.rows
        if chosen is None:
            return output
        if isinstance(chosen, int):
            return output + rows @ self.down[chosen] @ self.up[chosen]
        inner = mx.where(chosen, rows.reshape(-1, rows.shape[-1]) @ self.down, 0)
        inner = inner.swapaxes(0, 1).reshape(inner.shape[1], -1)
        return output + (inner @ self.up.reshape(-1, self.up.shape[-1])).reshape(output.shape)


def adapt(model: Any, folders: Sequence[LoraFolder], checkpoint: Checkpoint, dtype: mx.Dtype) -> AdapterChoice:
    """Put adapters into a model that `fuse` has seen, evaluated; return what says which row has which."""
    choice = AdapterChoice([folder.adapter.name for folder in folders])
    weights = [cast(dict[str, mx.array], mx.load(str(folder.weights_file))) for folder in folders]
    for index, layer in enumerate(model.model.layers if folders else ()):
        for parent, name, projections in _places(layer):
            parts = [{key: folder.layers[index].get(key) for key in projections} for folder in folders]
            rank = max(sum(part.rank for part in each.values() if part) for each in parts)
            if rank:
                shapes = [checkpoint.tensor_shapes[f"model.layers.{index}.{key}.weight"] for key in projections]
                pairs = [
                    _joined(list(each.values()), tensors, shapes, rank, dtype)
                    for each, tensors in zip(parts, weights, strict=True)
                ]
                setattr(parent, name, AdaptedLinear(parent[name], pairs, choice))
                mx.eval(parent.parameters())
    return choice


class _Place(NamedTuple):
    parent: Any
    name: str
    projections: tuple[str, ...]


_JOINED: Mapping[tuple[type, str], tuple[str, ...]] = {
    (FusedAttention, "qkv_proj"): ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    (FusedMlp, "gate_up_proj"): ("mlp.gate_proj", "mlp.up_proj"),
}
"""Projections of Baton's own modules that are several of the model's."""


def _places(layer: Any) -> Iterator[_Place]:
    """Yield the modules of a layer that adapters may change."""
    for projection in PROJECTIONS:
        part, _, name = projection.partition(".")
        parent = layer.get(part)
        if parent is not None and name in parent:
            yield _Place(parent, name, _JOINED.get((type(parent), name), (projection,)))


def _joined(
    parts: Sequence[LowRank | None],
    tensors: Mapping[str, mx.array],
    shapes: Sequence[tuple[int, ...]],
    rank: int,
    dtype: mx.Dtype,
) -> MlxLowRankWeights:
    """Return what an adapter adds to some projections, or to some of them, filled up with zeros to a rank.

    The outputs of each depend on its own inner columns alone. `shapes`: of the weights, [num_outputs, num_inputs].
    """
    down = mx.zeros((shapes[0][1], rank))
    up = mx.zeros((rank, sum(num_outputs for num_outputs, _ in shapes)))
    row = column = 0
    for part, (num_outputs, _) in zip(parts, shapes, strict=True):
        if part is not None:
            end = row + part.rank
            down[:, row:end] = tensors[part.down].T
            up[row:end, column : column + num_outputs] = tensors[part.up].T.astype(mx.float32) * part.scale
            row = end
        column += num_outputs
    return MlxLowRankWeights(down.astype(dtype), up.astype(dtype))
