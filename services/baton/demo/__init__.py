"""Holds the demo checkpoint, and measures it.

The checkpoint is a small Llama-architecture folder, trained on dialogues of arithmetic, reversed words, and values
looked up in a long context. Its answers can be checked by a person and by a test. What trained it is in the commit that
`training.json` names.

`evaluate` is a tool, not a part of a service, so it may import torch and transformers; the rule that only engine
runners import a framework does not bind it. Nothing that serves requests imports it.
"""

from pathlib import Path


def checkpoint_dir() -> Path:
    """Return the folder of the demo checkpoint: weights, config, tokenizer and chat template."""
    return Path(__file__).parent / "checkpoint"
