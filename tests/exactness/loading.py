"""Loads a runner of either framework."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Literal, get_args

from baton.engine.runners.base import Runner
from checkpoints import CHECKPOINT_NAMES, FAMILY_NAMES, CheckpointName

Framework = Literal["torch", "mlx"]
BLOCK_TOKENS = 16
NAMES = (*CHECKPOINT_NAMES, *FAMILY_NAMES)
SERVED: tuple[tuple[CheckpointName, Framework], ...] = tuple(
    (name, framework) for name in NAMES for framework in get_args(Framework) if (name, framework) != ("gpt_oss", "mlx")
)
"""Every family with every framework that serves it."""
SAMPLE = tuple((name, framework) for name, framework in SERVED if (framework == "torch") == NAMES.index(name) % 2)
"""Every family with one framework, each framework with every other family: for what engines do alike for all."""


def load_runner(
    framework: Framework,
    folder: Path,
    *,
    dtype: str = "float32",
    num_blocks: int = 512,
    adapters: Mapping[str, Path] = MappingProxyType({}),
) -> Runner:
    """Return a runner on the CPU, with blocks of 16 tokens."""
    sizes = {"num_blocks": num_blocks, "block_tokens": BLOCK_TOKENS}
    if framework == "torch":
        from baton.engine.runners.torch import load_torch_runner

        return load_torch_runner(folder, model_id="tiny", dtype=dtype, **sizes, num_threads=1, adapters=adapters)
    from baton.engine.runners.mlx import load_mlx_runner

    return load_mlx_runner(folder, model_id="tiny", dtype=dtype, **sizes, adapters=adapters)
