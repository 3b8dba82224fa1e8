"""The runner contract on torch: packs spans into a batch, and has a model compute it."""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

import torch

from baton.engine.runners.base import Array, BlockCopies, LayerKv, ModelInfo, Runner, Span
from baton.engine.runners.torch.batch import Followed, PackedBatch, RowBatch
from baton.engine.runners.torch.kv_codec import TorchCodec
from baton.engine.runners.torch.ops.device import MemoryRange
from baton.engine.runners.torch.ops.device_ops import DeviceOps
from baton.engine.runners.torch.ops.pool import KeysValues, KvPool
from baton.engine.runners.torch.recurrent import StatePool


class Backbone(Protocol):
    """A model over packed spans; it writes K and V into the batch's pool on its way."""

    name: str
    """Whose code it is: "transformers" or "baton"."""
    is_capturable: bool
    """Whether a decode pass asks the device for nothing, so that a CUDA graph can hold all of it."""

    def logits(self, batch: RowBatch) -> torch.Tensor:
        """Return the logits of the wanted rows: [num_logits, vocabulary_size]."""

    def memory(self) -> list[MemoryRange]:
        """Return where the weights are that passes read, on a CPU."""


class TorchLogits:
    """Logits on the device. They are [num_rows, vocabulary_size]."""

    def __init__(self, logits: torch.Tensor, ops: DeviceOps) -> None:
        self._logits, self._ops = logits, ops

    def argmax(self) -> list[int]:
        """Return the most probable token of each row (the smallest id among equals), `NOT_FINITE` where none is."""
        token_ids: list[int] = self._ops.most_probable(self._logits).tolist()
        return token_ids

    def rows(self, indices: Sequence[int] | None = None) -> Array:
        """Return some rows, or all, on the host: [num_rows, vocabulary_size], float32."""
        logits = self._logits if indices is None else self._logits[list(indices)]
        rows: Array = logits.float().cpu().numpy()
        rows.flags.writeable = False
        return rows


class TorchRunner(Runner):
    """Runs a model over spans whose KV is in a pool of blocks; a pass is one row of tokens, without padding."""

    wire_codec = TorchCodec()

    def __init__(
        self,
        model: Backbone,
        info: ModelInfo,
        *,
        num_blocks: int,
        block_tokens: int,
        ops: DeviceOps,
        num_idle_blocks: int = 0,
        num_state_slots: int = 0,
    ) -> None:
        """Take over a model; `num_idle_blocks` lie behind the others, for rows without a sequence to write to."""
        self.info, self.num_blocks = info, num_blocks
        self.block_tokens = block_tokens
        self.device = ops.device
        self._ops = ops
        self._model: Backbone | None = model
        self._kv_copies = ops.kv_copies()
        dtype = getattr(torch, info.layout.dtype.value)
        self._pool = KvPool(
            info.layout.layers,
            num_blocks=num_blocks + num_idle_blocks,
            block_tokens=block_tokens,
            dtype=dtype,
            device=ops.device,
        )
        self.num_state_slots = num_state_slots
        self._states = StatePool(info.layout.layers, num_state_slots, ops.device) if num_state_slots else None

    def forward(self, spans: Sequence[Span]) -> TorchLogits:
        """Compute spans of different sequences in one pass and write their KV into their blocks."""
        with self._ops.at_work():
            logits = self._packed_logits(spans)
            if self._kv_copies is not None:
                self._kv_copies.drain()
            return TorchLogits(logits, self._ops)

    def _packed_logits(self, spans: Sequence[Span], followed: Followed | None = None) -> torch.Tensor:
        """Compute spans; what they hand over may still be on its way."""
        assert self._model is not None, "the runner is closed"
        try:
            batch = PackedBatch(spans, self._pool, self.device, followed, self._kv_copies, self._states)
            return self._model.logits(batch)
        except BaseException:
            if self._kv_copies is not None:
                self._kv_copies.clear()
            raise

    def write_kv(self, block_table: Sequence[int], layer: int, start: int, num_tokens: int, kv: LayerKv) -> None:
        """Write K and V of some positions of a layer into blocks, in the cache's dtype; ValueError: other sizes."""
        if self.info.layout.layers[layer].state:
            return
        with self._ops.at_work():
            table = self._pool.table(block_table, start + num_tokens)
            self._pool.write(table, layer, start, self._pool.from_layer_kv(layer, num_tokens, kv))

    def read_kv(self, block_table: Sequence[int], layer: int, start: int, num_tokens: int) -> LayerKv:
        """Return K and V of positions [start, start + num_tokens) of one layer; empty ones if it keeps a state."""
        if self.info.layout.layers[layer].state:
            return LayerKv(b"", b"")
        with self._ops.at_work():
            table = self._pool.table(block_table, start + num_tokens)
            return self._pool.read(table, layer, start, start + num_tokens).to_layer_kv()

    def begin_copies(self, block_ids: Sequence[int]) -> BlockCopies:
        """Begin to copy whole blocks; on a CUDA device beside what is computed next, by way of copies there."""
        if self._kv_copies is None:
            return super().begin_copies(block_ids)
        num_tokens, layers = len(block_ids) * self.block_tokens, list[Callable[[], LayerKv]]()
        with self._ops.at_work():
            table = self._pool.table(block_ids, num_tokens)
            for layer, spec in enumerate(self.info.layout.layers):
                kv = self._pool.read(table, layer, 0, num_tokens)
                if table.is_run:  # a view, which passes to come may write to
                    kv = KeysValues(kv.keys.clone(), kv.values.clone())
                layers.append(partial(LayerKv, b"", b"") if spec.state else self._kv_copies.begin(kv).wait)
        return BlockCopies(layers, self.info.layout, len(block_ids), lambda: [wait() for wait in layers])

    def write_state(self, slot: int, layer: int, data: bytes | memoryview) -> None:
        """Write a layer's state, in float32."""
        assert self._states is not None, "the model keeps no states"
        with self._ops.at_work():
            self._states.write_bytes(layer, slot, data)

    def peak_device_bytes(self) -> int:
        """Return the most memory of the CUDA device that tensors have had; 0 on the CPU."""
        return self._ops.peak_bytes()

    def copy_block(self, source: int, target: int) -> None:
        """Copy K and V of all layers from one block into another."""
        with self._ops.at_work():
            self._pool.copy_block(source, target)

    def close(self) -> None:
        """Free the model and the blocks; the runner cannot be used afterwards. May be called again."""
        self._model = None
        self._pool.clear()
        self._states = None
        gc.collect()  # the last layer and its replaced forward refer to each other
        self._ops.release()
