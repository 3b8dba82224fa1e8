"""The device under test, runners on it, and where what was measured is written.

`BATON_GPU_DEVICE=cpu` tries the tests themselves on a CPU: the same steps uncaptured and, under TRITON_INTERPRET=1, the
kernels interpreted. `BATON_GPU_RESULTS` names a folder for JSON.
"""

from __future__ import annotations

import json
import os
import random
from pathlib import Path
from typing import Any

import torch

from baton.engine.kv_cache.pool_size import PoolBounds
from baton.engine.runners.torch import TorchRunner, load_torch_runner
from checkpoints import VOCABULARY_SIZE

DEVICE = torch.device(os.environ.get("BATON_GPU_DEVICE", "cuda"))
IS_CUDA = DEVICE.type == "cuda"
IS_THERE = not IS_CUDA or torch.cuda.is_available()
SEED = int(os.environ.get("BATON_GPU_SEED", "1"))
"""Of all that is drawn."""
BLOCK_TOKENS = 16
LLAMA_LIKE = ("llama", "llama3", "qwen2", "qwen3", "mistral", "wide_llama", "wide_qwen3", "yarn_llama", "qwen3_vl")
"""Checkpoints that Baton's own code computes: their steps are captured."""
_RESULTS = os.environ.get("BATON_GPU_RESULTS", "")


def device_runner(
    folder: Path, *, num_blocks: int = 512, max_batch_size: int = 8, has_graphs: bool | None = None, **options: Any
) -> TorchRunner:
    """Return a runner on the device; `has_graphs`: whether decode is captured, None: where it can be."""
    if has_graphs is None and not IS_CUDA:
        has_graphs = folder.name in LLAMA_LIKE
    return load_torch_runner(
        folder,
        model_id="tiny",
        num_blocks=num_blocks,
        block_tokens=BLOCK_TOKENS,
        device=str(DEVICE),
        num_threads=1,
        bounds=PoolBounds(max_batch_size=max_batch_size),
        uses_decode_buffers=has_graphs,
        **options,
    )


def prompt_of(length: int, seed: int = 0) -> list[int]:
    """Return a random prompt, the same in every process."""
    draw = random.Random(1_000_003 * SEED + 10_007 * seed + length)
    return [draw.randrange(3, VOCABULARY_SIZE) for _ in range(length)]


def machine() -> dict[str, str]:
    """Return on what a figure was taken."""
    name = torch.cuda.get_device_name(DEVICE) if IS_CUDA else "cpu"
    return {"device": name, "torch": torch.__version__, "commit": os.environ.get("BATON_COMMIT", "")}


def keep(name: str, measured: object) -> None:
    """Print what was measured, and write it where BATON_GPU_RESULTS says."""
    told = json.dumps({**machine(), "measured": measured}, indent=1)
    print(f"{name} {told}")
    if _RESULTS:
        folder = Path(_RESULTS)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{name}.json").write_text(told)
