"""Whether a stream is greedy, as far as float32 can tell: computed in float64, after each of its own beginnings."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from checkpoints import checkpoint

TIE = 2e-4
"""Logits that are no further apart may change places: computed at once rather than token by token, or in a batch of
another size, the distance of the best two moved by up to 1.0e-4 (float32, 3,200 positions of `test_hangs.asks_of`)."""


def num_wrong(prompt: Sequence[int], token_ids: Sequence[int]) -> int:
    """Return how many tokens of a stream are neither the best after what comes before them there, nor tied with it."""
    if not token_ids:
        return 0
    with torch.inference_mode():
        logits = _model()(torch.tensor([[*prompt, *token_ids][:-1]])).logits[0, len(prompt) - 1 :]
    behind = logits.max(-1).values - logits.gather(-1, torch.tensor(token_ids)[:, None])[:, 0]
    return int((behind > TIE).sum())


@cache
def _model() -> PreTrainedModel:
    model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(checkpoint("llama"), dtype=torch.float64)
    return model
