"""The runner of the mlx engine."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import mlx.core as mx

from baton.engine.checkpoint import read_checkpoint
from baton.engine.runners.base import LayerKv, ModelInfo, Runner, Span, kv_dtype_of
from baton.engine.runners.mlx.backbone import Backbone, batch_of
from baton.engine.runners.mlx.loader import compute_device, device_name, load_mlx_model
from baton.engine.runners.mlx.logits import MlxLogits
from baton.engine.runners.mlx.passes import plan_passes
from baton.engine.runners.mlx.pool import MLX_DTYPES, LayerPool
from baton.engine.runners.mlx.positions import slots_of
from baton.errors import ConfigurationError

_LEAST_FREED_BYTES, _MOST_FREED_BYTES = 128 << 20, 1 << 30
"""Bounds of the freed memory that MLX keeps for reuse; by default it may keep most of the machine's."""


class MlxRunner(Runner):
    """Runs an mlx-lm model over KV in numbered blocks.

    Spans of one token share one pass of the model; every longer one has its own, and so has one whose K and V go to a
    sink.

    Invariant: between passes every array is evaluated, because MLX evaluates a lazy array only in the thread that
    made it, and a write into a pool that is still to be read would copy it.
    """

    def __init__(self, model: Any, info: ModelInfo, *, num_blocks: int, block_tokens: int) -> None:
        self.info = info
        self.num_blocks = num_blocks
        self.block_tokens = block_tokens
        windows = [spec.sliding_window_tokens for spec in info.layout.layers]
        self._windows = set(windows)
        self._backbone = Backbone(model, windows)
        self._device = compute_device()
        dtype = MLX_DTYPES[info.layout.dtype]
        self._pools = [LayerPool(spec, num_blocks, block_tokens, dtype) for spec in info.layout.layers]

    def forward(self, spans: Sequence[Span]) -> MlxLogits:
        """Compute spans of different sequences and write their KV into their blocks."""
        token_bytes = self.info.layout.num_token_bytes()
        hidden: dict[int, mx.array] = {}
        with mx.stream(self._device):
            for indices in plan_passes(spans, weight_bytes=self.info.weight_bytes, token_bytes=token_bytes):
                hidden |= self._forward(spans, indices)
            return self._logits([hidden[index] for index, span in enumerate(spans) if span.needs_logits])

    def write_kv(self, block_table: Sequence[int], layer: int, start: int, num_tokens: int, kv: LayerKv) -> None:
        """Write K and V of positions [start, start + num_tokens) of one layer into blocks."""
        slots = slots_of(block_table, start, start + num_tokens, self.block_tokens)
        with mx.stream(self._device):
            self._pools[layer].write_bytes(slots, kv)

    def read_kv(self, block_table: Sequence[int], layer: int, start: int, num_tokens: int) -> LayerKv:
        """Return K and V of positions [start, start + num_tokens) of one layer."""
        slots = slots_of(block_table, start, start + num_tokens, self.block_tokens)
        with mx.stream(self._device):
            return self._pools[layer].read_bytes(slots)

    def peak_device_bytes(self) -> int:
        """Return the most memory that arrays have had; 0 on the CPU."""
        return mx.get_peak_memory() if self._device == mx.gpu else 0

    def copy_block(self, source: int, target: int) -> None:
        """Copy K and V of all layers from one block into another."""
        with mx.stream(self._device):
            for pool in self._pools:
                pool.copy_block(source, target)
            mx.eval([pool.arrays for pool in self._pools])

    def close(self) -> None:
        """Free the model and the blocks."""
        vars(self).pop("_backbone", None)
        self._pools.clear()
        mx.clear_cache()

    def _forward(self, spans: Sequence[Span], indices: list[int]) -> dict[int, mx.array]:
        """Run one pass; return the hidden states of each span whose logits are wanted, or nothing if none are."""
        chosen = [spans[index] for index in indices]
        batch = batch_of(chosen, self._windows, self.block_tokens)
        needs_last = any(span.needs_logits for span in chosen)
        hidden = self._backbone.hidden(batch, self._pools, needs_last=needs_last)
        mx.eval(hidden, [pool.arrays for pool in self._pools])
        if hidden is None:
            return {}
        if len(indices) == 1:
            return {indices[0]: hidden}
        return {index: hidden[row : row + 1] for row, index in enumerate(indices)}

    def _logits(self, hidden: list[mx.array]) -> MlxLogits:
        if not hidden:
            return MlxLogits(mx.zeros((0, self.info.vocabulary_size)))
        logits = self._backbone.logits(mx.concatenate(hidden))
        mx.eval(logits)
        return MlxLogits(logits)


def load_mlx_runner(
    directory: Path, *, model_id: str, dtype: str = "float32", num_blocks: int, block_tokens: int = 16
) -> MlxRunner:
    """Load a Hugging Face folder with mlx-lm, on the GPU where Metal is available, else on the CPU.

    Args:
        directory: Holds config.json and safetensors files.
        model_id: Served name.
        dtype: Of weights and cache: float32, float16 or bfloat16.
        num_blocks: Blocks in the pool, 1 or more.
        block_tokens: Tokens of one block, 1 or more.

    Raises:
        ConfigurationError: If the folder or the dtype cannot be served; the message says why.
    """
    if dtype not in {known.value for known in MLX_DTYPES}:
        names = ", ".join(known.value for known in MLX_DTYPES)
        raise ConfigurationError(f"dtype: {dtype!r} is not one of {names}")
    kv_dtype = kv_dtype_of(dtype)
    checkpoint = read_checkpoint(directory)
    with mx.stream(compute_device()):
        info = checkpoint.model_info(model_id, kv_dtype, engine="mlx", device=device_name())
        mx.set_cache_limit(_freed_bytes(num_blocks * block_tokens * info.layout.num_token_bytes()))
        model = load_mlx_model(checkpoint, MLX_DTYPES[kv_dtype])
        return MlxRunner(model, info, num_blocks=num_blocks, block_tokens=block_tokens)


def _freed_bytes(pool_bytes: int) -> int:
    """Return how much freed memory to keep: as much as the pool has, for what a pass gathers is part of it."""
    return min(max(pool_bytes, _LEAST_FREED_BYTES), _MOST_FREED_BYTES)
