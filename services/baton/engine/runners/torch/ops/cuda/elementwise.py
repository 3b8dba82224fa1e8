"""Calls the kernels between a layer's products; on a CPU only under TRITON_INTERPRET=1."""

from __future__ import annotations

import torch

from baton.engine.runners.torch.ops.device_ops import HeadNorms
from baton.engine.runners.torch.ops.pool import KeysValues

_GATE_BLOCK = 1024
_MANY_ROWS = 128
"""Rows from which a program rotates several."""
_WIDE = 4096
"""Elements of a row from which more warps share it."""


def rotate_and_store(
    heads: torch.Tensor,
    cosines: torch.Tensor,
    signed_sines: torch.Tensor,
    norms: HeadNorms | None,
    slots: torch.Tensor,
    pool: KeysValues,
    *,
    is_copied: bool = False,
) -> tuple[torch.Tensor, KeysValues | None]:
    """Normalise and rotate queries and K, write K and V into their slots; return the queries, and K and V if copied.

    `heads` are queries, keys and values side by side, [num_rows, num_heads + 2 * num_kv_heads, head_dim]; cosines and
    sines, the first half negated, [num_rows, 1, head_dim], all contiguous. The queries are [num_rows, num_heads,
    head_dim], K and V what was written, [num_kv_heads, num_rows, head_dim].
    """
    from baton.engine.runners.torch.ops.cuda.elementwise_kernel import rotate_and_store as kernel

    num_rows, num_all, head_dim = heads.shape
    num_kv_heads = pool.keys.shape[0]
    num_heads = num_all - 2 * num_kv_heads
    queries = heads.new_empty(num_rows, num_heads, head_dim)
    copies = heads.new_empty(2, num_kv_heads, num_rows, head_dim) if is_copied else queries
    tile_rows = 8 if num_rows >= _MANY_ROWS else 1
    kernel[(-(-num_rows // tile_rows), num_all)](
        *(heads, cosines, signed_sines),
        *((heads, heads) if norms is None else (norms.query.weight, norms.key.weight)),
        *(slots, queries, pool.keys, pool.values, copies),
        *(num_rows, heads.stride(0), pool.keys.stride(0), pool.values.stride(0)),
        0.0 if norms is None else norms.query.epsilon,
        NUM_HEADS=num_heads,
        NUM_KV_HEADS=num_kv_heads,
        HEAD_DIM=head_dim,
        PADDED_DIM=_power_of_two(head_dim),
        HAS_NORMS=norms is not None,
        IS_COPIED=is_copied,
        TILE_ROWS=tile_rows,
        num_warps=4 if tile_rows > 1 else 1,
    )
    return queries, KeysValues(copies[0], copies[1]) if is_copied else None


def gate(gate_up: torch.Tensor) -> torch.Tensor:
    """Return SiLU of the gates times the others: [num_rows, size] of [num_rows, 2 * size], the gates first."""
    from baton.engine.runners.torch.ops.cuda.elementwise_kernel import gate as kernel

    num_rows, size = len(gate_up), gate_up.shape[1] // 2
    output = gate_up.new_empty(num_rows, size)
    kernel[(num_rows, -(-size // _GATE_BLOCK))](gate_up.contiguous(), output, SIZE=size, BLOCK=_GATE_BLOCK)
    return output


def add_and_normalise(
    hidden: torch.Tensor, delta: torch.Tensor, weight: torch.Tensor, epsilon: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return hidden + delta, and the same divided by its root mean square times the weight."""
    from baton.engine.runners.torch.ops.cuda.elementwise_kernel import add_and_normalise as kernel

    size = hidden.shape[1]
    total, normalised = torch.empty_like(hidden), torch.empty_like(hidden)
    kernel[(len(hidden),)](
        *(hidden.contiguous(), delta.contiguous(), weight, total, normalised, epsilon),
        SIZE=size,
        PADDED_SIZE=_power_of_two(size),
        num_warps=8 if size >= _WIDE else 4,
    )
    return total, normalised


def _power_of_two(size: int) -> int:
    return 1 << (size - 1).bit_length()
