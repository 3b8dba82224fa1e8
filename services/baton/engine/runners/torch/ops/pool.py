"""K and V of all blocks on the device, and how numbers get there and are seen there."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from baton.engine.runners.base import LayerKv
from baton.engine.runners.torch.ops.cpu.huge_pages import zeros
from baton.kv.kv_format import LayerSpec

Array = np.ndarray[tuple[int, ...], np.dtype[Any]]
"""A tensor's memory, as kernels of a CPU take it."""


class KeysValues(NamedTuple):
    """K and V of consecutive positions of one layer; of a whole pool, a dimension of blocks stands before them."""

    keys: torch.Tensor
    """[num_kv_heads, num_tokens, key_head_dim]."""
    values: torch.Tensor
    """[num_kv_heads, num_tokens, value_head_dim]."""

    def to_layer_kv(self) -> LayerKv:
        """Copy to the host, as C-ordered bytes that share no memory with the device's tensors."""
        return LayerKv(_to_bytes(self.keys), _to_bytes(self.values))


class BlockTable:
    """A sequence's blocks as a pool indexes them. `is_run`: the `ids` are consecutive and need no gathering."""

    def __init__(self, ids: Sequence[int]) -> None:
        self.ids = tuple(ids)
        self.is_run = self.ids == tuple(range(self.ids[0], self.ids[0] + len(self.ids)))


class KvPool:
    """K and V of every layer and block.

    A layer's keys are one tensor [num_kv_heads, num_blocks, block_tokens, key_head_dim], its values likewise: the
    positions of a sequence whose blocks are consecutive are a view of it, which attention reads in place. `num_blocks`:
    blocks, idle ones included. `block_tokens`: tokens of one block.
    """

    def __init__(
        self,
        layers: Sequence[LayerSpec],
        *,
        num_blocks: int,
        block_tokens: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.num_blocks, self.block_tokens = num_blocks, block_tokens
        self._specs = tuple(layers)
        self._dtype, self._device = dtype, device
        self._offsets = np.arange(block_tokens)
        self._arrays: dict[int, tuple[Array, Array]] = {}
        self._layers = [
            tuple(
                zeros((spec.num_kv_heads, num_blocks, block_tokens, head_dim), dtype, device)
                for head_dim in (spec.key_head_dim, spec.value_head_dim)
            )
            for spec in layers
        ]

    def window_tokens(self, layer: int) -> int:
        """Return the positions that a query of a layer sees, its own included; 0: all."""
        return self._specs[layer].sliding_window_tokens

    def layer(self, layer: int) -> KeysValues:
        """Return K and V of all blocks of a layer: [num_kv_heads, num_blocks, block_tokens, head_dim]."""
        keys, values = self._layers[layer]
        return KeysValues(keys, values)

    def arrays(self, layer: int) -> tuple[Array, Array]:
        """Return the same as numpy arrays of the same memory, on a CPU: bfloat16 as its bits."""
        if layer not in self._arrays:
            keys, values = self._layers[layer]
            self._arrays[layer] = array_of(keys), array_of(values)
        return self._arrays[layer]

    def table(self, block_table: Sequence[int], num_tokens: int) -> BlockTable:
        """Return the blocks that hold positions [0, num_tokens)."""
        num_blocks = -(-num_tokens // self.block_tokens)
        assert num_blocks <= len(block_table), f"{len(block_table)} blocks do not hold {num_tokens} tokens"
        return BlockTable(block_table[:num_blocks])

    def slots(self, table: BlockTable, start: int, end: int) -> Array:
        """Return where positions [start, end) lie among the positions of all blocks: [end - start], int64."""
        first, offset = divmod(start, self.block_tokens)
        ids = table.ids[first : -(-end // self.block_tokens)]
        if len(ids) == 1 or table.is_run:
            base = ids[0] * self.block_tokens + offset
            return np.arange(base, base + end - start)
        slots: Array = np.array(ids)[:, None] * self.block_tokens + self._offsets
        return slots.ravel()[offset : offset + end - start]

    def write_slots(self, layer: int, slots: torch.Tensor, kv: KeysValues) -> None:
        """Write K and V of as many positions as there are slots, on the device, of any sequences."""
        for pool, source in zip(self._layers[layer], kv, strict=True):
            pool.flatten(1, 2).index_copy_(1, slots, source)

    def write(self, table: BlockTable, layer: int, start: int, kv: KeysValues) -> None:
        """Write K and V of the positions from `start` on."""
        slots = upload(self.slots(table, start, start + kv.keys.shape[1]), self._device, torch.int64)
        self.write_slots(layer, slots, kv)

    def read(self, table: BlockTable, layer: int, start: int, end: int) -> KeysValues:
        """Return K and V of positions [start, end): a view where the blocks are consecutive, else a copy."""
        first_block, last_block = start // self.block_tokens, -(-end // self.block_tokens)
        offset = first_block * self.block_tokens
        blocks = (self._blocks(pool, table, first_block, last_block) for pool in self._layers[layer])
        return KeysValues(*(block.flatten(1, 2)[:, start - offset : end - offset] for block in blocks))

    def copy_block(self, source: int, target: int) -> None:
        """Copy K and V of all layers from one block into another."""
        for pools in self._layers:
            for pool in pools:
                pool[:, target] = pool[:, source]

    def from_layer_kv(self, layer: int, num_tokens: int, kv: LayerKv) -> KeysValues:
        """Return host bytes as tensors of the device, without waiting for a pass; raise ValueError for other sizes."""
        tensors = (
            _from_bytes(buffer, (pool.shape[0], num_tokens, pool.shape[3]), self._dtype)
            for buffer, pool in zip(kv, self._layers[layer], strict=True)
        )
        return KeysValues(*(upload(tensor, self._device, self._dtype) for tensor in tensors))

    def clear(self) -> None:
        """Free all blocks."""
        self._layers.clear()
        self._arrays.clear()

    def _blocks(self, pool: torch.Tensor, table: BlockTable, first_block: int, last_block: int) -> torch.Tensor:
        if table.is_run:
            return pool[:, table.ids[0] + first_block : table.ids[0] + last_block]
        return pool.index_select(1, upload(table.ids[first_block:last_block], self._device, torch.int64))


def upload(values: Sequence[object] | Array | torch.Tensor, device: torch.device, dtype: torch.dtype) -> torch.Tensor:
    """Return numbers as a device's tensor; for CUDA they leave pinned memory while the host goes on."""
    told = torch.from_numpy(values) if isinstance(values, np.ndarray) else values
    host = told.to(dtype) if isinstance(told, torch.Tensor) else torch.tensor(told, dtype=dtype)
    return host.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else host


def array_of(tensor: torch.Tensor) -> Array:
    """Return the numpy array of the same memory, on a CPU; bfloat16 as the bits, uint16."""
    array: Array = (tensor.view(torch.uint16) if tensor.dtype is torch.bfloat16 else tensor).numpy()
    return array


def _to_bytes(tensor: torch.Tensor) -> memoryview:
    host = tensor.to("cpu", copy=True, memory_format=torch.contiguous_format)
    return memoryview(host.view(-1).view(torch.uint8).numpy())


def _from_bytes(buffer: bytes | memoryview, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Return a tensor of the same memory, or of a copy where it is read-only: torch makes none from such memory."""
    num_bytes = math.prod(shape) * dtype.itemsize
    if len(buffer) != num_bytes:
        raise ValueError(f"K or V has {len(buffer)} bytes, {num_bytes} expected for shape {shape} in {dtype}")
    writable = bytearray(buffer) if memoryview(buffer).readonly else buffer
    return torch.frombuffer(writable, dtype=dtype).view(shape)
