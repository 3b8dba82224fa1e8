"""Whose computation the time of a pass was: what the prompts in it took, each by its own work.

A node tells of each prompt how long its own computation took; the rest of the time until its first token it waited.
So estimates of computing and of waiting can be compared with outcomes apart from each other, whatever shared a pass.
"""

from __future__ import annotations

from baton.capacity.cost import ModelShape
from baton.engine.scheduling.step import Step


def pair_weight(shape: ModelShape) -> float:
    """Return the work of a pair of positions in attention, as a share of a position's in the linear layers."""
    return shape.attention_flop_per_pair / (2.0 * shape.num_linear_parameters)


def attribute(step: Step, seconds: float, pair_weight: float) -> None:
    """Enter the time of a pass into the sequences that it brings nearer to their first token.

    Prompts share all of it by their work: what decoding sequences add to a pass with prompts is part of what the
    prompts take there. A prompt that is computed again, after its first token, has a share that is entered nowhere; a
    sequence that takes over what another one computes has none.

    Args:
        step: The pass.
        seconds: What it took.
        pair_weight: See `pair_weight`.
    """
    parts = list[tuple[float, bool]]()
    for sequence, span in zip(step.sequences, step.spans, strict=True):
        num_tokens, is_answered = len(span.token_ids), sequence.stats.first_token > 0.0
        is_part = not is_answered or num_tokens > 1
        num_pairs = num_tokens * (2 * span.start + num_tokens) / 2
        parts.append((num_tokens + pair_weight * num_pairs if is_part else 0.0, not is_answered))
    total = sum(work for work, _ in parts)
    for sequence, (work, is_awaited) in zip(step.sequences, parts, strict=True):
        if is_awaited:
            sequence.stats.computed_seconds += seconds * work / total
