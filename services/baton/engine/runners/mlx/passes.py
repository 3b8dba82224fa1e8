"""Which spans share a pass of the model."""

from __future__ import annotations

from collections.abc import Sequence

from baton.engine.runners.base import Span

_PASS_OVERHEAD_BYTES = 64 << 20
"""What launching a pass costs, as bytes that could be read meanwhile: a fraction of a millisecond."""
_COPIES_PER_TOKEN = 3
"""A gathered token is read from the pool, written, and read by attention."""


def plan_passes(spans: Sequence[Span], *, weight_bytes: int, token_bytes: int) -> list[list[int]]:
    """Return the indices of the spans of each pass.

    A span of several tokens, or one with a sink, goes alone. Spans of one token go together, and every row of a pass
    reads as many tokens as its longest sequence has; therefore a pass ends where shorter rows would read more padding
    than another pass reads weights.

    Args:
        spans: Of different sequences.
        weight_bytes: Read by every pass.
        token_bytes: K and V of one token in all layers.
    """
    alone = [[index] for index, span in enumerate(spans) if not _can_share(span)]
    together = [index for index, span in enumerate(spans) if _can_share(span)]
    longest_first = sorted(together, key=lambda index: -spans[index].end)
    return alone + _split(
        longest_first,
        [spans[index].end for index in longest_first],
        max_padding_tokens=(weight_bytes + _PASS_OVERHEAD_BYTES) // (_COPIES_PER_TOKEN * token_bytes),
    )


def _can_share(span: Span) -> bool:
    return len(span.token_ids) == 1 and span.layer_sink is None


def _split(indices: list[int], lengths: list[int], *, max_padding_tokens: int) -> list[list[int]]:
    """Split at the first row from which on all rows together would be padded too much, O(n)."""
    passes: list[list[int]] = []
    longest = 0
    for row, (index, length) in enumerate(zip(indices, lengths, strict=True)):
        if not passes or (longest - length) * (len(indices) - row) > max_padding_tokens:
            passes.append([])
            longest = length
        passes[-1].append(index)
    return passes
