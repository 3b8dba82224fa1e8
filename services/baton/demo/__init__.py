"""Holds the demo checkpoint: a small Llama-architecture folder.

It was trained on dialogues of arithmetic, reversed words, and values looked up in a long context, so that its answers
can be checked by a person and by a test. What trained it is in the commit that `training.json` names.
"""

from pathlib import Path


def checkpoint_dir() -> Path:
    """Return the folder of the demo checkpoint: weights, config, tokenizer and chat template."""
    return Path(__file__).parent / "checkpoint"
