"""Which spans share a pass of the model, and whether attention reads them in rows or in their blocks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from typing import NamedTuple

import mlx.core as mx

from baton.engine.runners.base import Span
from baton.engine.runners.mlx.forward_pass import backbone
from baton.engine.runners.mlx.forward_pass.launched import MlxPass, fed_tokens
from baton.engine.runners.mlx.kv_cache.pool import LayerPool
from baton.engine.runners.mlx.kv_cache.rows import RowSet

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
    one reads. Spans of one token go together, and every row of a pass reads as many tokens as its longest sequence has;
    therefore a pass ends where shorter rows would read more padding than another pass reads weights.

    `readers` are indices of the spans that may read what spans before them write; `weight_bytes` are read by every
    pass, `token_bytes` are K and V of one token in all layers.
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


class PlannedBatch(NamedTuple):
    """A batch, and whose it is."""

    batch: backbone.MlxBatch
    order: list[int]
    """Index of the span in each row of the batch."""


class MlxBatches:
    """Plans the passes of a launch, and keeps the rows of those that decode.

    Sequences that decode get rows, as far as there is memory; beyond it their blocks are gathered in every pass, layer
    by layer. All rows together may have `max_row_positions`; `weight_bytes` are read by every pass, `token_bytes` are K
    and V of one token in all layers; `can_pack`: the model takes packed rows.
    """

    def __init__(
        self,
        pools: Mapping[int, LayerPool],
        windows: set[int],
        block_tokens: int,
        *,
        new_rows: Callable[[], RowSet],
        max_row_positions: int,
        weight_bytes: int,
        token_bytes: int,
        can_pack: bool,
    ) -> None:
        self._pools, self._windows = pools, windows
        self._block_tokens, self._new_rows = block_tokens, new_rows
        self._max_row_positions, self._weight_bytes = max_row_positions, weight_bytes
        self._token_bytes, self._can_pack = token_bytes, can_pack
        self._row_sets: list[RowSet] = []

    def forget(self, blocks: Sequence[int]) -> None:
        """Give up the rows of sequences that have one of these blocks, which are written otherwise."""
        for rows in self._row_sets:
            rows.assignment.forget(blocks)

    def plan(self, spans: Sequence[Span], after: MlxPass | None) -> Iterator[PlannedBatch]:
        """Yield a launch's passes, to be computed in turn; `after` is the launch before, if a span `follows_row`."""
        self.forget(_opened(spans, self._block_tokens))
        alone, together = plan_passes(
            spans,
            self._readers(spans),
            weight_bytes=self._weight_bytes,
            token_bytes=self._token_bytes,
            block_tokens=self._block_tokens,
        )
        for indices in self._packs(alone, spans):
            yield self._from_blocks(indices, spans, after, is_packed=len(indices) > 1)
        for number, indices in enumerate(together):
            yield self._decoding(number, indices, spans, after)
        if together:
            del self._row_sets[len(together) :]

    def _readers(self, spans: Sequence[Span]) -> list[int]:
        """Return the spans that read blocks which other spans of the launch may be writing."""
        return [
            index for index, span in enumerate(spans) if not any(rows.assignment.has(span) for rows in self._row_sets)
        ]

    def _decoding(self, number: int, indices: list[int], spans: Sequence[Span], after: MlxPass | None) -> PlannedBatch:
        chosen = [spans[index] for index in indices]
        if len(self._row_sets) == number:
            self._row_sets.append(self._new_rows())
        rows = self._row_sets[number]
        others = sum(other.num_positions for other in self._row_sets if other is not rows)
        if others + rows.num_positions_for(chosen) > self._max_row_positions:
            return self._from_blocks(indices, spans, after)
        taken = rows.take(chosen, self._pools, self._windows)
        for other in self._row_sets:
            if other is not rows:
                other.assignment.forget(taken.opened)
        ordered = [chosen[index] for index in taken.order]
        batch = backbone.batch_of_many(ordered, fed_tokens(ordered, after), taken.readings, self._block_tokens)
        return PlannedBatch(replace(batch, rows=rows.layers), [indices[index] for index in taken.order])

    def _packs(self, alone: list[int], spans: Sequence[Span]) -> list[list[int]]:
        """Return which spans that cannot share a pass row by row share a packed row: neighbours of one adapter."""
        if not self._can_pack:
            return [[index] for index in alone]
        return [list(group) for _, group in groupby(alone, key=lambda index: spans[index].adapter)]

    def _from_blocks(
        self, indices: list[int], spans: Sequence[Span], after: MlxPass | None, *, is_packed: bool = False
    ) -> PlannedBatch:
        chosen = [spans[index] for index in indices]
        for span in chosen:
            self.forget(span.block_table[span.start // self._block_tokens : -(-span.end // self._block_tokens)])
        if is_packed:
            tokens = mx.concatenate([fed_tokens([span], after) for span in chosen], axis=1)
            return PlannedBatch(backbone.batch_of_parts(chosen, tokens, self._windows, self._block_tokens), indices)
        tokens = fed_tokens(chosen, after)
        if len(chosen) == 1:
            return PlannedBatch(backbone.batch_of_one(chosen[0], tokens, self._windows, self._block_tokens), indices)
        return PlannedBatch(backbone.batch_of_blocks(chosen, tokens, self._windows, self._block_tokens), indices)


def _opened(spans: Sequence[Span], block_tokens: int) -> list[int]:
    """Return the blocks that a launch is the first to write for their sequence; a row that has one holds the past."""
    return [
        block
        for span in spans
        for block in span.block_table[-(-span.start // block_tokens) : -(-span.end // block_tokens)]
    ]
