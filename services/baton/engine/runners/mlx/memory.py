"""How much of the device's memory a node may take, and what MLX is told about it."""

from __future__ import annotations

import logging

import mlx.core as mx

from baton.config.container_limits import usable_memory
from baton.engine.kv_cache.pool_size import DeviceMemory
from baton.engine.runners.mlx.kv_cache.cells import QUANTIZED_BITS, group_size_of
from baton.kv.kv_format import KvLayout

log = logging.getLogger(__name__)

_LEAST_FREED_BYTES, _MOST_FREED_BYTES = 128 << 20, 1 << 30
"""Bounds of the freed memory that MLX keeps for reuse; by default it may keep most of the machine's."""


def position_bytes(layout: KvLayout, *, is_quantized: bool) -> int:
    """Return what K and V of one position in all layers take in a node's memory, which is less than on the wire."""
    if not is_quantized:
        return layout.num_token_bytes()
    element_bytes = layout.dtype.num_bytes
    num_bytes = 0
    for spec in layout.layers:
        for head_dim in (spec.key_head_dim, spec.value_head_dim):
            num_groups = head_dim // (group_size_of(head_dim) or head_dim)
            num_bytes += spec.num_kv_heads * (head_dim * QUANTIZED_BITS // 8 + 2 * num_groups * element_bytes)
    return num_bytes


def row_bytes(block_bytes: int) -> int:
    """Return what rows take for each block where all may have one: see `row_positions`."""
    return block_bytes * 5 // 4


def row_positions(pool_positions: int, position_bytes: int, model_bytes: int, device_bytes: int) -> int:
    """Return the positions that rows may have beside the pool.

    A quarter more than the pool's, so that every block may be in a row of a length rounded up, or what is left of the
    device; where nothing is, sequences decode from their blocks. So rows never ask for memory that is not there, and
    what requests are admitted to is the blocks. `position_bytes` are K and V of one position in all layers;
    `device_bytes` 0: unknown.
    """
    wanted = pool_positions * 5 // 4
    if not device_bytes:
        return wanted
    num_left = device_bytes - model_bytes - pool_positions * position_bytes
    positions = min(wanted, max(0, num_left) // position_bytes)
    log.info(
        "memory_shared device_bytes=%d model_bytes=%d block_bytes=%d row_bytes=%d row_share=%.2f",
        *(device_bytes, model_bytes, pool_positions * position_bytes, positions * position_bytes, positions / wanted),
    )
    return positions


def device_bytes() -> int:
    """Return the memory that the device gives without swapping; 0 where it is unknown.

    That is the GPU's working set, or on a CPU what MLX's arrays have and what this process may still take.
    """
    if mx.metal.is_available():
        return int(mx.device_info(mx.Device(mx.gpu)).get("max_recommended_working_set_size", 0))
    return usable_memory().free_bytes + mx.get_active_memory()


def device_memory() -> DeviceMemory:
    """Return the memory of the device, with the model loaded.

    What macOS calls available is no bound for a GPU: files that were read, such as the model's, count as taken.
    """
    own_bytes = mx.get_active_memory()
    if mx.metal.is_available() and (working_set := device_bytes()):
        return DeviceMemory("the GPU's working set", working_set, own_bytes, working_set - own_bytes, is_main=False)
    main = usable_memory()
    return DeviceMemory("main memory", main.total_bytes, own_bytes, main.free_bytes, is_main=True)


def set_limits(pool_bytes: int, num_device_bytes: int) -> None:
    """Bound what MLX keeps, and have the GPU's memory wired, lest the system page the weights out between requests."""
    # As much freed memory as the pool has: what a pass gathers is part of the pool.
    mx.set_cache_limit(min(max(pool_bytes, _LEAST_FREED_BYTES), _MOST_FREED_BYTES))
    if num_device_bytes and mx.metal.is_available():
        mx.set_memory_limit(num_device_bytes)
        mx.set_wired_limit(num_device_bytes)
