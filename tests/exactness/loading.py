"""Loads a runner of either framework."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from baton.engine.runners.base import Runner

Framework = Literal["torch", "mlx"]
BLOCK_TOKENS = 16


def load_runner(framework: Framework, folder: Path, *, dtype: str = "float32", num_blocks: int = 512) -> Runner:
    """Return a runner on the CPU, with blocks of 16 tokens."""
    if framework == "torch":
        from baton.engine.runners.torch import load_torch_runner

        return load_torch_runner(
            folder, model_id="tiny", dtype=dtype, num_blocks=num_blocks, block_tokens=BLOCK_TOKENS, num_threads=1
        )
    from baton.engine.runners.mlx import load_mlx_runner

    return load_mlx_runner(folder, model_id="tiny", dtype=dtype, num_blocks=num_blocks, block_tokens=BLOCK_TOKENS)
