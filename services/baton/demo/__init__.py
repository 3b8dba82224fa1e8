"""Holds the demo checkpoints: small folders, one of Llama's architecture, one of Qwen3.5's, a hybrid.

A person and a test can check their answers. What trained them is in the commits that `training.json` names.
"""

from pathlib import Path

DEMO = "baton-demo"
MODELS = {DEMO: Path(__file__).parent / "checkpoint", "baton-demo-hybrid": Path(__file__).parent / "baton-demo-hybrid"}
"""Folders by the names that models are served under."""


def checkpoint_dir(name: str = DEMO) -> Path:
    """Return the folder of a demo checkpoint: weights, config, tokenizer and chat template."""
    return MODELS[name]
