"""Says whether tokens are transformers', and if not, by how little the wrong one was missed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from checkpoints import reference_generate, reference_logits


def check_tokens(folder: Path, prompt: Sequence[int], output: Sequence[int]) -> None:
    """Check a greedy continuation; the message tells the margin in float64 where it first differs."""
    expected = reference_generate(folder, list(prompt), len(output), guess=list(output))
    if list(output) == expected:
        return
    index = next(place for place, pair in enumerate(zip(output, expected, strict=True)) if pair[0] != pair[1])
    known = [*prompt, *expected[:index]]
    wide = reference_logits(folder, known, dtype=torch.float64)[-1]
    margin = float(wide[expected[index]] - wide[output[index]])
    told = f"token {index} of {len(output)} after {len(prompt)}: {output[index]}, not {expected[index]}"
    raise AssertionError(f"{told}; in float64 the expected logit is higher by {margin:.2e} of {float(wide.std()):.2f}")
