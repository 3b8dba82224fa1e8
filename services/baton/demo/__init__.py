"""Holds the demo checkpoint, and the scripts that made and measure it.

The checkpoint is a small Llama-architecture folder, trained here on dialogues that `dialogues` writes: arithmetic,
reversed words, and values looked up in a long context. Its answers can be checked by a person and by a test.

`model`, `train`, `export` and `evaluate` are tools, not parts of a service, so they may import torch and transformers;
the rule that only engine runners import a framework does not bind them. Nothing that serves requests imports them.
"""

from pathlib import Path


def checkpoint_dir() -> Path:
    """Return the folder of the demo checkpoint: weights, config, tokenizer and chat template."""
    return Path(__file__).parent / "checkpoint"
