"""Draws tokens by the Triton kernels; on a CPU only under TRITON_INTERPRET=1."""

from __future__ import annotations

import torch

from baton.engine.runners.drawing import NOT_FINITE

_CHUNK = 2048
"""Tokens that a program weighs; a power of 2."""


def draw(logits: torch.Tensor, temperatures: torch.Tensor, uniforms: torch.Tensor) -> torch.Tensor:
    """Return the drawn token of each row: [num_rows], int64; see `DeviceOps.drawn`.

    `logits`: [num_rows, vocabulary_size]. `temperatures` and `uniforms`: [num_rows], float64.
    """
    from baton.engine.runners.torch.ops.cuda.drawing_kernel import pick_tokens, weigh_chunks

    rows = logits.contiguous()
    num_rows, size = rows.shape
    num_chunks = -(-size // _CHUNK)
    highest, places, sums = (
        torch.empty(num_rows, num_chunks, dtype=dtype, device=rows.device)
        for dtype in (torch.float32, torch.int32, torch.float64)
    )
    chosen = torch.empty(num_rows, dtype=torch.int64, device=rows.device)
    sizes = {"SIZE": size, "NUM_CHUNKS": num_chunks, "CHUNK": _CHUNK}
    weigh_chunks[(num_rows, num_chunks)](rows, temperatures, highest, places, sums, **sizes)
    padded_chunks = 1 << (num_chunks - 1).bit_length()
    pick_tokens[(num_rows,)](
        *(rows, temperatures, uniforms, highest, places, sums, chosen, NOT_FINITE),
        **sizes,
        PADDED_CHUNKS=padded_chunks,
        num_warps=8,
    )
    return chosen
