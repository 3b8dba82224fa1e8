"""In bfloat16 outputs may differ from float32; how much is measured here, and bounded."""

from __future__ import annotations

import random
from typing import Literal

import numpy as np
import pytest
import torch

from baton.engine.runners.base import Runner, Span
from checkpoints import CHECKPOINT_NAMES, CheckpointName, checkpoint, reference_logits
from exactness.loading import Framework, load_runner

NUM_PROMPT_TOKENS, NUM_FORCED_TOKENS = 160, 96
BLOCK_TOKENS = 16
MAX_ERROR_RATIO = 1.3
MAX_LOST_AGREEMENT = 0.1
"""Against transformers' own bfloat16: what rounding costs on such weights is not ours to gate."""

Hop = tuple[Framework, Framework]
HOPS: tuple[Hop, ...] = (("torch", "torch"), ("torch", "mlx"), ("mlx", "torch"))
Logits = np.ndarray[tuple[int, ...], np.dtype[np.float32]]
Dtype = Literal["float32", "bfloat16"]


@pytest.mark.parametrize("name", CHECKPOINT_NAMES)
@pytest.mark.parametrize("hop", HOPS, ids="-to-".join)
def test_a_hand_over_in_bfloat16_is_as_close_to_float32_as_transformers_is(name: CheckpointName, hop: Hop) -> None:
    """Forced through 96 tokens after a remote prefill, top tokens and logits differ no more than bfloat16 must."""
    token_ids = _token_ids(NUM_PROMPT_TOKENS + NUM_FORCED_TOKENS)
    expected = reference_logits(checkpoint(name), token_ids)[NUM_PROMPT_TOKENS:].numpy()
    plain = reference_logits(checkpoint(name), token_ids, dtype=torch.bfloat16)[NUM_PROMPT_TOKENS:].numpy()

    logits = _forced_logits(name, hop, token_ids, "bfloat16")

    agreement, plain_agreement = _agreement(logits, expected), _agreement(plain, expected)
    error, plain_error = _relative_error(logits, expected), _relative_error(plain, expected)
    print(
        f"{name:8} {'-to-'.join(hop):14} top-1 agreement {agreement:.3f} (transformers {plain_agreement:.3f}), "
        f"relative logit error {error:.4f} ({plain_error:.4f})"
    )
    assert agreement >= plain_agreement - MAX_LOST_AGREEMENT
    assert error <= MAX_ERROR_RATIO * plain_error


def _agreement(logits: Logits, expected: Logits) -> float:
    return float((logits.argmax(-1) == expected.argmax(-1)).mean())


def _relative_error(logits: Logits, expected: Logits) -> float:
    """Return the root of the mean squared difference as a share of the logits' standard deviation."""
    return float(np.sqrt(((logits - expected) ** 2).mean()) / expected.std())


def _token_ids(num_tokens: int) -> list[int]:
    draw = random.Random(5)
    return [draw.randrange(3, 512) for _ in range(num_tokens)]


def _forced_logits(name: CheckpointName, hop: Hop, token_ids: list[int], dtype: Dtype) -> Logits:
    """Prefill on one runner, carry the KV over, feed the rest token by token on the other: [num_forced, vocabulary]."""
    prefill, decode = (load_runner(framework, checkpoint(name), dtype=dtype, num_blocks=32) for framework in hop)
    table = list(range(-(-len(token_ids) // BLOCK_TOKENS)))
    prefill.forward([Span(token_ids[:NUM_PROMPT_TOKENS], 0, table, needs_logits=False)])
    _carry(prefill, decode, table)
    rows = []
    for position in range(NUM_PROMPT_TOKENS, len(token_ids)):
        span = Span([token_ids[position]], position, table, needs_logits=True)
        rows.append(decode.forward([span]).rows()[0].copy())
    prefill.close()
    decode.close()
    return np.stack(rows)


def _carry(prefill: Runner, decode: Runner, table: list[int]) -> None:
    for layer in range(prefill.info.layout.num_layers):
        kv = prefill.read_kv(table, layer, 0, NUM_PROMPT_TOKENS)
        decode.write_kv(table, layer, 0, NUM_PROMPT_TOKENS, kv)
