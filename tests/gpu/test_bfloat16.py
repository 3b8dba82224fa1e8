"""In bfloat16 the device is as close to float32 as transformers' own bfloat16 is there: top tokens and logits."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from baton.engine.runners.base import Launched, Span, StateSpan
from checkpoints import CheckpointName, checkpoint, reference_logits
from gpu.device import device_runner, keep, prompt_of

NUM_PROMPT_TOKENS, NUM_FORCED_TOKENS = 160, 96
MAX_ERROR_RATIO = 1.3
MAX_LOST_AGREEMENT = 0.1
Logits = np.ndarray[tuple[int, ...], np.dtype[np.float32]]
NAMES: tuple[CheckpointName, ...] = (
    *("llama", "llama3", "qwen2", "qwen3", "mistral", "gemma2", "gemma3", "phi3", "gpt_oss", "mixtral", "qwen3_moe"),
    *("qwen3_next", "lfm2", "deepseek_v3"),
)


@pytest.mark.parametrize("name", NAMES)
def test_logits_are_as_near_as_those_of_transformers(name: CheckpointName) -> None:
    """Forced through 96 tokens one by one, by captured steps where they can be, behind a prompt in two chunks."""
    token_ids = prompt_of(NUM_PROMPT_TOKENS + NUM_FORCED_TOKENS, 9)
    expected = reference_logits(checkpoint(name), token_ids)[NUM_PROMPT_TOKENS:].numpy()
    plain = reference_logits(checkpoint(name), token_ids, dtype=torch.bfloat16)[NUM_PROMPT_TOKENS:].numpy()

    logits = _forced_logits(name, token_ids)

    told = {
        "agreement": _agreement(logits, expected),
        "agreement of transformers": _agreement(plain, expected),
        "error": _relative_error(logits, expected),
        "error of transformers": _relative_error(plain, expected),
        "largest difference": float(np.abs(logits - expected).max()),
        "largest logit": float(np.abs(expected).max()),
    }
    keep(f"bfloat16-{name}", told)
    assert told["agreement"] >= told["agreement of transformers"] - MAX_LOST_AGREEMENT
    assert told["error"] <= MAX_ERROR_RATIO * told["error of transformers"]


def _agreement(logits: Logits, expected: Logits) -> float:
    return float((logits.argmax(-1) == expected.argmax(-1)).mean())


def _relative_error(logits: Logits, expected: Logits) -> float:
    """Return the root of the mean squared difference as a share of the logits' standard deviation."""
    return float(np.sqrt(((logits - expected) ** 2).mean()) / expected.std())


def _forced_logits(name: CheckpointName, token_ids: list[int]) -> Logits:
    runner = device_runner(checkpoint(name), dtype="bfloat16", num_blocks=32)
    state = StateSpan(0, 0) if runner.num_state_slots else None

    def launch(start: int, end: int) -> Launched:
        needs_logits = end >= NUM_PROMPT_TOKENS
        return runner.launch([Span(token_ids[start:end], start, range(17), needs_logits=needs_logits, state=state)])

    for start, end in ((0, 90), (90, NUM_PROMPT_TOKENS)):
        launch(start, end).tokens()
    positions = range(NUM_PROMPT_TOKENS, len(token_ids))
    rows = [launch(position, position + 1).logits().rows()[0].copy() for position in positions]
    runner.close()
    return np.stack(rows)
