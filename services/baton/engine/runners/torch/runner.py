"""The runner contract on torch."""

from __future__ import annotations

import gc
from collections.abc import Sequence

import torch

from baton.engine.runners.base import NOT_FINITE, Array, LayerKv, ModelInfo, Runner, Span
from baton.engine.runners.torch.backbone import Backbone
from baton.engine.runners.torch.batch import PackedBatch
from baton.engine.runners.torch.pool import KvPool


class TorchLogits:
    """Logits on the device: [num_rows, vocabulary_size]."""

    def __init__(self, logits: torch.Tensor) -> None:
        self._logits = logits

    def argmax(self) -> list[int]:
        """Return the most probable token of each row (the smallest id among equals), `NOT_FINITE` where none is."""
        if self._logits.dtype is torch.float32:  # on a CPU three times as quick as `max`; in half precision, slower
            best = self._logits.argmax(dim=-1, keepdim=True)
            highest, best = self._logits.gather(-1, best).squeeze(-1), best.squeeze(-1)
        else:
            highest, best = self._logits.max(dim=-1)
        token_ids: list[int] = torch.where(highest.isfinite(), best, NOT_FINITE).tolist()
        return token_ids

    def rows(self, indices: Sequence[int] | None = None) -> Array:
        """Return some rows, or all, on the host: [num_rows, vocabulary_size], float32."""
        logits = self._logits if indices is None else self._logits[list(indices)]
        rows: Array = logits.float().cpu().numpy()
        rows.flags.writeable = False
        return rows


class TorchRunner(Runner):
    """Runs a model over spans whose KV lives in a pool of blocks.

    Sequences in a pass are laid end to end in one row of tokens: no padding.
    """

    def __init__(
        self, model: Backbone, info: ModelInfo, *, num_blocks: int, block_tokens: int, device: torch.device
    ) -> None:
        """Take over a model.

        Args:
            model: The model on `device`.
            info: Its description.
            num_blocks: Blocks in the pool, 1 or more.
            block_tokens: Tokens of one block, 1 or more.
            device: Where model and pool live.
        """
        self.info = info
        self.num_blocks = num_blocks
        self.block_tokens = block_tokens
        self._device = device
        self._model: Backbone | None = model
        dtype = getattr(torch, info.layout.dtype.value)
        self._pool = KvPool(
            info.layout.layers, num_blocks=num_blocks, block_tokens=block_tokens, dtype=dtype, device=device
        )

    def forward(self, spans: Sequence[Span]) -> TorchLogits:
        """Compute spans of different sequences in one pass and write their KV into their blocks."""
        with torch.inference_mode():
            assert self._model is not None, "the runner is closed"
            return TorchLogits(self._model.logits(PackedBatch(spans, self._pool, self._device)))

    def write_kv(self, block_table: Sequence[int], layer: int, start: int, num_tokens: int, kv: LayerKv) -> None:
        """Write K and V of positions [start, start + num_tokens) of one layer, in the cache's dtype, into blocks.

        Raises:
            ValueError: If the buffers do not have the size of these positions.
        """
        with torch.inference_mode():
            table = self._pool.table(block_table, start + num_tokens)
            self._pool.write(table, layer, start, self._pool.from_layer_kv(layer, num_tokens, kv))

    def read_kv(self, block_table: Sequence[int], layer: int, start: int, num_tokens: int) -> LayerKv:
        """Return K and V of positions [start, start + num_tokens) of one layer."""
        with torch.inference_mode():
            table = self._pool.table(block_table, start + num_tokens)
            return self._pool.read(table, layer, start, start + num_tokens).to_layer_kv()

    def peak_device_bytes(self) -> int:
        """Return the most memory of the CUDA device that tensors have had; 0 on the CPU."""
        return torch.cuda.max_memory_allocated(self._device) if self._device.type == "cuda" else 0

    def copy_block(self, source: int, target: int) -> None:
        """Copy K and V of all layers from one block into another."""
        with torch.inference_mode():
            self._pool.copy_block(source, target)

    def close(self) -> None:
        """Free the model and the blocks; the runner cannot be used afterwards. May be called again."""
        self._model = None
        self._pool.clear()
        gc.collect()  # the last layer and its replaced forward refer to each other
        if self._device.type == "cuda":
            torch.cuda.empty_cache()
