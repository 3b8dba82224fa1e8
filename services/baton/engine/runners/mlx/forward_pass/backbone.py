"""One pass of an mlx-lm model over a batch, layer by layer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import mlx.core as mx
import numpy as np

from baton.engine.runners.base import LayerSink, Span, StateSpan
from baton.engine.runners.mlx.kv_cache.packed import PackedCache, Packing, pack
from baton.engine.runners.mlx.kv_cache.pool import LayerPool
from baton.engine.runners.mlx.kv_cache.positions import Extent, Slots, VisibleKeys, read_many, read_one, slots_of
from baton.engine.runners.mlx.kv_cache.rows import LayerRows
from baton.engine.runners.mlx.kv_cache.states import LayerStates, StateCache
from baton.engine.runners.mlx.kv_cache.views import ReadingCache, RowCache, WritingCache
from baton.engine.runners.mlx.modules.families import RunLayer, surroundings_of
from baton.engine.runners.mlx.modules.lora import AdapterChoice


@dataclass(frozen=True, slots=True)
class LastPositions:
    """What the last layer computes of a longer span, besides K and V: the positions whose logits are wanted."""

    offset: int
    """The first of them; they go to the end of the span."""
    readings: dict[int, VisibleKeys]
    """What attention reads, by the layer's window in tokens (0: all)."""


@dataclass(frozen=True, slots=True)
class MlxBatch:
    """Spans that go through the model in one pass: one of any length, several of one token, or several packed."""

    token_ids: mx.array
    """[num_rows, num_tokens], int32."""
    offset: int | mx.array
    """Position of the first token: of the only row, or [num_rows], int32."""
    slots: Slots
    """Where K and V of the tokens go, row after row."""
    readings: dict[int, VisibleKeys]
    """What attention reads, by the layer's window in tokens (0: all)."""
    last: LastPositions | None = None
    """What the last layer computes; None: all that the rows have."""
    sink: LayerSink | None = None
    """Where to hand K and V of each layer."""
    spans: Sequence[Span] = ()
    """What is computed, row by row; none of several packed ones."""
    rows: Mapping[int, LayerRows] | None = None
    """Where attention reads K and V of each layer; None: in the pool."""
    adapters: tuple[str, ...] = ()
    """Name of the adapter of each row, or nothing; none at all: no row has one."""
    packing: Packing | None = None
    """How spans lie in the only row; None: it is one span's."""

    def cache(self, layer: int, pool: LayerPool, window_tokens: int) -> WritingCache | RowCache | PackedCache:
        """Return the cache that a layer gets."""
        if self.packing is not None:
            return PackedCache(pool, self.packing, layer, window_tokens, is_last=False)
        reading = self.readings[window_tokens]
        if self.rows is not None:
            return RowCache(pool, self.offset, self.slots, reading, rows=self.rows[layer])
        return WritingCache(pool, self.offset, self.slots, reading, layer=layer, sink=self.sink)


def batch_of_one(span: Span, token_ids: mx.array, windows: set[int], block_tokens: int) -> MlxBatch:
    """Return the pass that computes one span of any length from its blocks. `token_ids` is [1, num_tokens], int32."""
    extent = Extent(span.start, span.end, span.block_table)
    last = Extent(min(span.first_logits_position, span.end - 1), span.end, span.block_table)
    return MlxBatch(
        token_ids=token_ids,
        offset=span.start,
        slots=slots_of(span.block_table, span.start, span.end, block_tokens),
        readings={window: read_one(extent, window, block_tokens) for window in windows},
        last=LastPositions(last.start, {window: read_one(last, window, block_tokens) for window in windows})
        if last.start > span.start
        else None,
        sink=span.layer_sink,
        spans=(span,),
        adapters=_adapters_of([span]),
    )


def batch_of_parts(spans: Sequence[Span], token_ids: mx.array, windows: set[int], block_tokens: int) -> MlxBatch:
    """Return the pass over spans, packed in one row `token_ids`, [1, num_tokens], int32, and one adapter."""
    packing = pack(spans, windows, block_tokens)
    return MlxBatch(token_ids, 0, packing.slots, {}, adapters=_adapters_of(spans[:1]), packing=packing)


def batch_of_blocks(spans: Sequence[Span], token_ids: mx.array, windows: set[int], block_tokens: int) -> MlxBatch:
    """Return the pass that computes several spans of one token, whose blocks are gathered layer by layer."""
    extents = [Extent(span.start, span.end, span.block_table) for span in spans]
    readings = {window: read_many(extents, window, block_tokens) for window in windows}
    return batch_of_many(spans, token_ids, readings, block_tokens)


def batch_of_many(
    spans: Sequence[Span], token_ids: mx.array, readings: dict[int, VisibleKeys], block_tokens: int
) -> MlxBatch:
    """Return the pass that computes spans of one token, with what each of them reads."""
    if len(spans) == 1:  # a slice and a plain offset take fewer kernels than their arrays
        start, table = spans[0].start, spans[0].block_table
        slots_of_one = slots_of(table, start, start + 1, block_tokens)
        return MlxBatch(token_ids, start, slots_of_one, readings, spans=spans, adapters=_adapters_of(spans))
    blocks = [span.block_table[span.start // block_tokens] for span in spans]
    slots = [block * block_tokens + span.start % block_tokens for block, span in zip(blocks, spans, strict=True)]
    return MlxBatch(
        token_ids=token_ids,
        offset=mx.array([span.start for span in spans], dtype=mx.int32),
        slots=np.asarray(slots, dtype=np.int32),
        readings=readings,
        spans=spans,
        adapters=_adapters_of(spans),
    )


def _adapters_of(spans: Sequence[Span]) -> tuple[str, ...]:
    return tuple(span.adapter for span in spans) if any(span.adapter for span in spans) else ()


class MlxBackbone:
    """The layers and the head of a model of mlx-lm, called one by one.

    mlx-lm's modules are used as they are, but not its loop over the layers: that one shares a mask among layers whose
    windows differ (it ignores Mistral's), and applies the head to every position. `windows` has the window of each
    cache, tokens; 0: none. `states` are of the layers that keep them instead of K and V; passes that only measure have
    `idle_slot`.
    """

    def __init__(
        self,
        model: Any,
        windows: Sequence[int],
        adapters: AdapterChoice,
        states: Mapping[int, LayerStates],
        idle_slot: int = 0,
    ) -> None:
        self._states, self._idle_slot = states, idle_slot
        self._adapters = adapters
        self._surroundings = surroundings_of(model)
        self._caches = self._surroundings.caches
        self._windows = tuple(windows[cache] for cache in self._caches)

    def hidden(self, batch: MlxBatch, pools: Mapping[int, LayerPool], *, needs_last: bool) -> mx.array | None:
        """Write K and V of every layer and return the last layer's output at the positions whose logits are wanted.

        In the last layer, attention and MLP run for those positions alone, or not at all without `needs_last`: MLX is
        lazy, so that what nobody reads is never computed. Returns [num_positions, hidden_size], lazy; None without
        `needs_last`.
        """
        self._adapters.choose(batch.adapters)
        hidden = self._surroundings.embed(batch.token_ids)
        run = self._surroundings.layers(batch.token_ids, hidden)
        for layer, (source, window) in enumerate(zip(self._caches, self._windows, strict=True)):
            before = hidden
            if layer in self._states:
                hidden = self._run_recurrent(run, layer, before, batch)
                continue
            mask = None if batch.packing else self._surroundings.mask(batch.readings[window], hidden.shape[1])
            cache = batch.cache(layer, pools[layer], window) if layer == source else None
            hidden = run(layer, before, mask, cache)
        if not needs_last:
            return None
        last, source = len(self._caches) - 1, self._caches[-1]
        if batch.packing is not None:
            packed = PackedCache(pools[source], batch.packing, last, window, is_last=True)
            wanted = mx.concatenate([before[:, each] for each in batch.packing.chosen], axis=1)
            hidden = run(last, wanted, None, packed)
        elif batch.last is not None:
            num_wanted = batch.token_ids.shape[1] - batch.last.offset + cast(int, batch.offset)
            if last in self._states:
                hidden = hidden[:, -num_wanted:]
            else:
                reading = batch.last.readings[window]
                mask = self._surroundings.mask(reading, num_wanted)
                read = ReadingCache(pools[source], batch.last.offset, reading)
                hidden = run(last, before[:, -num_wanted:], mask, read)
        return hidden.reshape(-1, hidden.shape[-1])

    def logits(self, hidden: mx.array) -> mx.array:
        """Return the logits of [num_rows, hidden_size], lazily: [num_rows, vocabulary_size]."""
        return self._surroundings.logits(hidden)

    def _run_recurrent(self, run: RunLayer, layer: int, hidden: mx.array, batch: MlxBatch) -> mx.array:
        """Run a layer that keeps states, cut where copies of one are wanted; hand over those that are complete."""
        idle = self._idle_slot
        spans = [span.state or StateSpan(idle if span.start else None, idle) for span in batch.spans]
        slots, sources = [each.slot for each in spans], [each.source for each in spans]
        states, start, outputs = self._states[layer], batch.spans[0].start, []
        begin, num_tokens = 0, hidden.shape[1]
        cuts = spans[0].saves if len(spans) == 1 else ()
        for end in dict.fromkeys([*(cut.end - start for cut in cuts), num_tokens]):
            cache = StateCache(states.read(sources))
            outputs.append(run(layer, hidden[:, begin:end], None, cache))
            states.write(slots, tuple(cache.arrays))
            for slot, save in ((each.slot, save) for each in spans for save in each.saves):
                if len(spans) > 1 or save.end == start + end:
                    states.copy(slot, save.slot)
            begin, sources = end, [*slots]
        for span, slot in zip(batch.spans, slots, strict=True):
            if span.layer_sink is not None and span.needs_logits:
                span.layer_sink(layer, states.to_kv(slot))
        return outputs[0] if len(outputs) == 1 else mx.concatenate(outputs, axis=1)
