"""Spans of several sequences laid end to end, as one row of tokens."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np
import torch

from baton.engine.runners.base import Span
from baton.engine.runners.torch.lora import AdaptedRows, adapted_rows
from baton.engine.runners.torch.ops.cuda.copy_stream import KvCopies
from baton.engine.runners.torch.ops.cuda.paged_queries import PagedQueries, pack_queries, padded_tables, tiles_for
from baton.engine.runners.torch.ops.pool import BlockTable, KeysValues, KvPool, upload
from baton.engine.runners.torch.recurrent import StateBatch, StatePool, pieces_of

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class QuerySegment:
    """The queries of one sequence among the rows of a packed tensor.

    Interval table: rows [first_row, first_row + end - start) are positions [start, end).
    """

    table: BlockTable
    first_row: int
    start: int
    end: int

    @property
    def num_rows(self) -> int:
        """Return the number of queries."""
        return self.end - self.start


class Followed(NamedTuple):
    """Tokens that a pass before has chosen and that the host may not know yet."""

    spans: list[int]
    """Indices of the spans that feed them, each its only token."""
    tokens: torch.Tensor
    """On the device: [len(spans)], int64."""


class RowBatch(Protocol):
    """What a model's layers must know of the rows that they are given; see `PackedBatch`."""

    pool: KvPool
    spans: tuple[Span, ...]
    segments: tuple[QuerySegment, ...]
    last_segments: tuple[QuerySegment, ...]
    kv_copies: KvCopies | None
    adapted: tuple[AdaptedRows, ...]
    last_adapted: tuple[AdaptedRows, ...]

    @property
    def has_sinks(self) -> bool:
        """Return whether any K and V are handed over."""

    @property
    def num_rows(self) -> int:
        """Return the number of rows."""

    @property
    def num_logits(self) -> int:
        """Return the number of rows whose logits are wanted."""

    def token_ids(self) -> torch.Tensor:
        """Return the tokens: [1, num_rows]."""

    def positions(self) -> torch.Tensor:
        """Return their positions: [1, num_rows]."""

    def slots(self) -> torch.Tensor:
        """Return where in the pool the positions lie: [num_rows]."""

    def last_rows(self) -> torch.Tensor:
        """Return the rows whose logits are wanted: [num_logits]."""

    def paged(self, segments: tuple[QuerySegment, ...], group: int, head_dim: int, dtype: torch.dtype) -> PagedQueries:
        """Return the description of the segments' queries."""


class PackedBatch:
    """What the model's layers must know of the spans in a forward pass.

    `segments` are the rows of every span when all positions are computed, `last_segments` when only those are whose
    logits are wanted; `adapted` and `last_adapted` those of them with adapters. `kv_copies` calls the spans' sinks;
    None: they are called at once. `states` are of layers that keep them; None: there is none.
    """

    def __init__(
        self,
        spans: Sequence[Span],
        pool: KvPool,
        device: torch.device,
        followed: Followed | None = None,
        kv_copies: KvCopies | None = None,
        states: StatePool | None = None,
    ) -> None:
        self._followed = followed
        self.states = StateBatch(spans, states, pieces_of(spans, states)) if states is not None else None
        self.kv_copies, self.pool = kv_copies, pool
        self.spans = tuple(spans)
        self._device = device
        ends = accumulate(len(span.token_ids) for span in spans)
        self.segments = tuple(
            QuerySegment(pool.table(span.block_table, span.end), end - len(span.token_ids), span.start, span.end)
            for span, end in zip(self.spans, ends, strict=True)
        )
        logits_ends = accumulate(span.num_logits for span in self.spans)
        self.last_segments = tuple(
            QuerySegment(segment.table, end - span.num_logits, span.first_logits_position, span.end)
            for span, segment, end in zip(self.spans, self.segments, logits_ends, strict=True)
            if span.needs_logits
        )
        self._last_rows = [
            segment.first_row + position - span.start
            for span, segment in zip(self.spans, self.segments, strict=True)
            for position in range(span.first_logits_position, span.end)
        ]
        self.adapted, self.last_adapted = self._adapted() if any(span.adapter for span in spans) else ((), ())
        self._slots: torch.Tensor | None = None
        self._made: dict[Hashable, Any] = {}

    def _adapted(self) -> tuple[tuple[AdaptedRows, ...], tuple[AdaptedRows, ...]]:
        """Return the rows that have adapters among all, and among those whose logits are wanted."""
        wanting = [span for span in self.spans if span.needs_logits]
        kinds = ((self.spans, self.segments, self.num_rows), (wanting, self.last_segments, self.num_logits))
        every, last = (
            adapted_rows(
                (
                    (span.adapter, range(segment.first_row, segment.first_row + segment.num_rows))
                    for span, segment in zip(spans, segments, strict=True)
                ),
                num_rows,
                self._device,
            )
            for spans, segments, num_rows in kinds
        )
        return every, last

    @property
    def num_rows(self) -> int:
        """Return the number of tokens in all spans."""
        return sum(segment.num_rows for segment in self.segments)

    @property
    def has_sinks(self) -> bool:
        """Return whether K and V of some span go on the wire."""
        return any(span.layer_sink is not None for span in self.spans)

    def token_ids(self) -> torch.Tensor:
        """Return the tokens: [1, num_rows]."""
        tokens = chain.from_iterable(span.token_ids for span in self.spans)
        token_ids = upload(np.fromiter(tokens, np.int64, self.num_rows)[None], self._device, torch.int64)
        if self._followed is not None:
            rows = upload([self.segments[index].first_row for index in self._followed.spans], self._device, torch.int64)
            token_ids[0].index_copy_(0, rows, self._followed.tokens)
        return token_ids

    def positions(self) -> torch.Tensor:
        """Return their positions: [1, num_rows]."""
        positions = np.concatenate([np.arange(span.start, span.end) for span in self.spans])
        return upload(positions[None], self._device, torch.int64)

    @property
    def num_logits(self) -> int:
        """Return the number of tokens after which logits are wanted."""
        return len(self._last_rows)

    def slots(self) -> torch.Tensor:
        """Return where in the pool the positions of all rows lie, the same in all layers: [num_rows]."""
        if self._slots is None:
            slots = [self.pool.slots(segment.table, segment.start, segment.end) for segment in self.segments]
            self._slots = upload(np.concatenate(slots), self._device, torch.int64)
        return self._slots

    def last_rows(self) -> torch.Tensor:
        """Return the rows of the tokens after which logits are wanted: [num_logits]."""
        return upload(self._last_rows, self._device, torch.int64)

    def paged(self, segments: tuple[QuerySegment, ...], group: int, head_dim: int, dtype: torch.dtype) -> PagedQueries:
        """Return the description of all queries, or of those whose logits are wanted, the same in layers of a kind."""
        max_queries = max(segment.num_rows for segment in segments)
        tiles = tiles_for(dtype, group=group, head_dim=head_dim, max_queries=max_queries)

        def make() -> PagedQueries:
            blocks = [segment.table.ids for segment in segments]
            tables = self.once(("tables", len(segments)), lambda: padded_tables(blocks, self._device))
            starts, ends = ([getattr(segment, name) for segment in segments] for name in ("start", "end"))
            return pack_queries(tables, starts, ends, tiles=tiles, device=self._device)

        return self.once((segments is self.segments, tiles), make)

    def once(self, key: Hashable, make: Callable[[], _T]) -> _T:
        """Return what is the same in all layers of a kind: made when it is first asked for."""
        if key not in self._made:
            self._made[key] = make()
        made: _T = self._made[key]
        return made


def store(batch: RowBatch, layer: int, kv: KeysValues) -> None:
    """Write K and V of all rows of a batch into their blocks, and hand them to the spans' sinks."""
    batch.pool.write_slots(layer, batch.slots(), kv)
    hand_over(batch, layer, kv)


def hand_over(batch: RowBatch, layer: int, kv: KeysValues) -> None:
    """Give the spans' sinks K and V of all rows of a batch: at once, or as soon as the device has copied them."""
    for span, segment in zip(batch.spans, batch.segments, strict=True):
        if span.layer_sink is not None:
            rows = slice(segment.first_row, segment.first_row + segment.num_rows)
            own = KeysValues(kv.keys[:, rows], kv.values[:, rows])
            if batch.kv_copies is None:
                span.layer_sink(layer, own.to_layer_kv())
            else:
                batch.kv_copies.add(span.layer_sink, layer, own)
