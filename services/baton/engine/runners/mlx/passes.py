"""Which spans share a pass of the model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from baton.engine.runners.base import Span

_PASS_OVERHEAD_BYTES = 64 << 20
"""What launching a pass costs, as bytes that could be read meanwhile: a fraction of a millisecond."""
_COPIES_PER_TOKEN = 3
"""A gathered token is read from the pool, written, and read by attention."""


class Passes(NamedTuple):
    """Indices of the spans of each pass, in the order in which they run."""

    alone: list[int]
    """Each has a pass of its own, or they are packed in this order."""
    together: list[list[int]]
    """Spans of one token, longest sequences first."""


def plan_passes(
    spans: Sequence[Span], readers: Sequence[int], *, weight_bytes: int, token_bytes: int, block_tokens: int
) -> Passes:
    """Return the passes that compute some spans.

    A span of several tokens, or one with a sink, has no row beside others, nor has one of a single token that another
    one reads.
    Spans of one token go together, and every row of a pass reads as many tokens as its longest sequence has; therefore
    a pass ends where shorter rows would read more padding than another pass reads weights.

    Args:
        spans: Of different sequences.
        readers: Indices of the spans that may read what spans before them write.
        weight_bytes: Read by every pass.
        token_bytes: K and V of one token in all layers.
        block_tokens: Tokens of one block.
    """
    written_early = _written_for(spans, readers, block_tokens)
    alone = [index for index, span in enumerate(spans) if not _can_share(span) or index in written_early]
    together = sorted(set(range(len(spans))).difference(alone), key=lambda index: (-spans[index].end, index))
    return Passes(
        alone,
        _split(
            together,
            [spans[index].end for index in together],
            max_padding_tokens=(weight_bytes + _PASS_OVERHEAD_BYTES) // (_COPIES_PER_TOKEN * token_bytes),
        ),
    )


def _can_share(span: Span) -> bool:
    return len(span.token_ids) == 1 and span.layer_sink is None


def _written_for(spans: Sequence[Span], readers: Sequence[int], block_tokens: int) -> set[int]:
    """Return the spans of one token that write a block from which a reader after them reads."""
    if not readers:
        return set()
    writers = {
        span.block_table[span.start // block_tokens]: index for index, span in enumerate(spans) if _can_share(span)
    }
    return {
        writers[block]
        for reader in readers
        for block in writers.keys() & set(spans[reader].block_table)
        if writers[block] < reader
    }


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
