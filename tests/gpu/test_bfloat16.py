"""In bfloat16 the device is as close to float32 as transformers' own bfloat16 is there: top tokens and logits."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from baton.engine.runners.base import Launched, Span, StateSpan
from checkpoints import CheckpointName, checkpoint, reference_logits
from gpu.device import BLOCK_TOKENS, device_runner, keep, prompt_of

NUM_PROMPTS = 6
"""Of one alone the error is too much one of chance: where experts are chosen, rounding of half a step in bfloat16 makes
it 0.9 to 1.5 times as large."""
NUM_PROMPT_TOKENS, NUM_FORCED_TOKENS = 160, 96
BLOCKS_EACH = (NUM_PROMPT_TOKENS + NUM_FORCED_TOKENS) // BLOCK_TOKENS
MAX_ERROR_RATIO = 1.3
MAX_LOST_AGREEMENT = 0.1
Logits = np.ndarray[tuple[int, ...], np.dtype[np.float32]]
NAMES: tuple[CheckpointName, ...] = (
    *("llama", "llama3", "qwen2", "qwen3", "mistral", "gemma2", "gemma3", "phi3", "gpt_oss", "mixtral", "qwen3_moe"),
    *("qwen3_next", "lfm2", "nemotron_h", "falcon_h1", "deepseek_v3"),
)


@pytest.mark.parametrize("name", NAMES)
def test_logits_are_as_near_as_those_of_transformers(name: CheckpointName) -> None:
    """Forced through 96 tokens one by one, by captured steps where they can be, behind prompts in two chunks."""
    prompts = [prompt_of(NUM_PROMPT_TOKENS + NUM_FORCED_TOKENS, 9 + index) for index in range(NUM_PROMPTS)]
    expected, plain = (
        np.stack(
            [reference_logits(checkpoint(name), each, dtype=dtype)[NUM_PROMPT_TOKENS:].numpy() for each in prompts]
        )
        for dtype in (torch.float32, torch.bfloat16)
    )

    logits = _forced_logits(name, prompts)

    told = {
        "agreement": _agreement(logits, expected),
        "agreement of transformers": _agreement(plain, expected),
        "error": _relative_error(logits, expected),
        "error of transformers": _relative_error(plain, expected),
        "by prompt": [
            (_relative_error(logits[each], expected[each]), _relative_error(plain[each], expected[each]))
            for each in range(NUM_PROMPTS)
        ],
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


def _forced_logits(name: CheckpointName, prompts: list[list[int]]) -> Logits:
    runner = device_runner(checkpoint(name), dtype="bfloat16", num_blocks=NUM_PROMPTS * BLOCKS_EACH)
    has_states = runner.num_state_slots > 0

    def launch(start: int, end: int) -> Launched:
        spans = [
            Span(
                token_ids[start:end],
                start,
                range(index * BLOCKS_EACH, (index + 1) * BLOCKS_EACH),
                needs_logits=end >= NUM_PROMPT_TOKENS,
                state=StateSpan(index, index) if has_states else None,
            )
            for index, token_ids in enumerate(prompts)
        ]
        return runner.launch(spans)

    for start, end in ((0, 90), (90, NUM_PROMPT_TOKENS)):
        launch(start, end).tokens()
    positions = range(NUM_PROMPT_TOKENS, NUM_PROMPT_TOKENS + NUM_FORCED_TOKENS)
    rows = [np.array(launch(position, position + 1).logits().rows()) for position in positions]
    runner.close()
    return np.stack(rows, axis=1)
