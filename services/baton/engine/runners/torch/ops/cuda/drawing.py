"""Draws tokens by the Triton kernels; on a CPU only under TRITON_INTERPRET=1."""

from __future__ import annotations

import torch

_CHUNK = 2048
"""Tokens that a program weighs; a power of 2."""


def draw(logits: torch.Tensor, best: torch.Tensor, temperatures: torch.Tensor, uniforms: torch.Tensor) -> torch.Tensor:
    """Return the drawn token of each row: [num_rows], int64; see `DeviceOps.drawn`.

    `logits`: [num_rows, vocabulary_size]. `best`: the most probable tokens, [num_rows], int64. `temperatures` and
    `uniforms`: [num_rows], float64.
    """
    from baton.engine.runners.torch.ops.cuda.drawing_kernel import pick_tokens, sum_chunks

    rows = logits.contiguous()
    num_rows, size = rows.shape
    num_chunks = -(-size // _CHUNK)
    sums = torch.empty(num_rows, num_chunks, dtype=torch.float64, device=rows.device)
    chosen = torch.empty_like(best)
    sizes = {"SIZE": size, "NUM_CHUNKS": num_chunks, "CHUNK": _CHUNK}
    sum_chunks[(num_rows, num_chunks)](rows, best, temperatures, sums, **sizes)
    padded_chunks = 1 << (num_chunks - 1).bit_length()
    pick_tokens[(num_rows,)](
        rows, best, temperatures, uniforms, sums, chosen, **sizes, PADDED_CHUNKS=padded_chunks, num_warps=8
    )
    return chosen
