"""Operations on a CPU: products by oneDNN, and kernels of Baton's own where they were found to serve."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch

from baton.engine.checkpoint.weights import PackedRows
from baton.engine.runners.base import NOT_FINITE
from baton.engine.runners.torch.batch import PackedBatch, QuerySegment, RowBatch
from baton.engine.runners.torch.ops.cpu.affine import AffineLinear, PackedEmbedding, can_hold, joined
from baton.engine.runners.torch.ops.cpu.huge_pages import use_huge_pages
from baton.engine.runners.torch.ops.cpu.linear import CpuLinear, Layout, product
from baton.engine.runners.torch.ops.device import MemoryRange
from baton.engine.runners.torch.ops.device_ops import DeviceOps, HeadNorms, LayerParts, Norm, Rotation
from baton.engine.runners.torch.ops.eager.attention import AttentionParams, attend_causally
from baton.engine.runners.torch.ops.eager.linear import PACKED, Linear, Projection, biases_of
from baton.engine.runners.torch.ops.eager.quantised import RoundedWeight
from baton.engine.runners.torch.ops.pool import Array, KeysValues, KvPool, array_of

log = logging.getLogger(__name__)

MIN_QUERIES = 16
"""Queries from which blocks and tiles are worth their calls."""
Indices = np.ndarray[tuple[int, ...], np.dtype[np.int64]]
"""Whole numbers."""


class CpuPaths(NamedTuple):
    """What computes on a CPU."""

    num_threads: int
    """Threads of torch, and of attention in tiles."""
    layout: Layout
    """Of weights."""
    multiplies_by_onednn: bool
    """Whether scores are multiplied by oneDNN, in float32."""
    multiplies_bfloat16: bool
    """Whether it multiplies bfloat16, the dtype of rows; else parts of packed weights are multiplied in float32."""
    answers_single_queries: bool
    """Whether Baton's kernel answers single queries from the blocks in place."""
    attends_in_tiles: bool
    """Whether Baton's kernel attends from prompts."""
    computes_layers: bool
    """Whether Baton's kernels compute layers of few rows as a whole; and, for one thread, what lies between products of
    any number."""
    multiplies_packed: Callable[[], bool] = lambda: False
    """Returns whether Baton's kernel multiplies by weights that stay packed, and oneDNN by parts that are unpacked."""

    @property
    def product_dtype(self) -> torch.dtype:
        """Return in what oneDNN multiplies."""
        return torch.bfloat16 if self.multiplies_bfloat16 else torch.float32


class CpuOps(DeviceOps):
    """Operations of any number of threads."""

    def __init__(self, device: torch.device, paths: CpuPaths) -> None:
        super().__init__(device)
        self._paths = paths
        self.weights_cause = paths.layout.cause

    def attend(
        self,
        batch: RowBatch,
        segments: tuple[QuerySegment, ...],
        layer: int,
        query: torch.Tensor,
        params: AttentionParams,
    ) -> torch.Tensor:
        """See `DeviceOps`; single queries are answered from the blocks in place."""
        single = None
        if self._paths.answers_single_queries and params.is_plain and isinstance(batch, PackedBatch):
            single = single_queries(batch, segments, params.window_tokens)
        if single is None:
            return super().attend(batch, segments, layer, query, params)
        assert isinstance(batch, PackedBatch), "single queries are those of packed rows"
        blocks = batch.pool.arrays(layer)
        output = query.new_empty(query.shape[1], query.shape[0], blocks[1].shape[-1])
        attend_single(query.transpose(0, 1), blocks, single, params.scaling, output)
        for segment in segments:
            if segment.num_rows > 1:
                rows = slice(segment.first_row, segment.first_row + segment.num_rows)
                output[rows] = self._attend_segment(batch, segment, layer, query, params).transpose(0, 1)
        return output.transpose(0, 1)

    def decode_step(self, layers: Sequence[LayerParts], head: Projection) -> KernelDecodeStep | None:
        """Return the layers as one call of kernels, where these serve all and layers are alike."""
        if not (self._paths.computes_layers and self._paths.answers_single_queries):
            return None
        streamed = [layer for layer in map(_streamed, layers) if layer is not None]
        if len(streamed) < len(layers) or not (isinstance(head, CpuLinear) and head.num_streamed_rows):
            return None
        if not all(layer.is_like(streamed[0]) for layer in streamed):
            return None
        num_heads, num_threads = layers[0].num_query_heads, self._paths.num_threads
        return KernelDecodeStep(streamed, head, num_query_heads=num_heads, num_threads=num_threads)

    def most_probable(self, logits: torch.Tensor) -> torch.Tensor:
        """See `DeviceOps`; in half precision a maximum with its index is found twice as quickly."""
        if logits.dtype is torch.float32:
            return super().most_probable(logits)
        highest, best = logits.max(dim=-1)
        return torch.where(highest.isfinite(), best, NOT_FINITE)

    def settle(self, memory: Iterable[MemoryRange]) -> None:
        """Have the weights moved to huge pages."""
        started_seconds = time.monotonic()
        num_bytes = use_huge_pages(memory)
        log.info("huge_pages bytes=%d seconds=%.2f", num_bytes, time.monotonic() - started_seconds)

    def embedding(self, module: torch.nn.Embedding) -> Projection:
        """See `DeviceOps`."""
        weight = getattr(module, PACKED, None)
        return super().embedding(module) if weight is None else PackedEmbedding(weight, module.weight.dtype)

    def can_hold(self, packed: PackedRows) -> bool:
        """See `DeviceOps`."""
        return can_hold(packed) and self._paths.multiplies_packed()

    def _hold(self, weight: torch.Tensor, bias: torch.Tensor | None) -> Linear:
        return self._paths.layout.form(weight, bias)

    def _hold_packed(self, modules: Sequence[torch.nn.Linear]) -> Linear:
        paths, like = self._paths, modules[0].weight[:1].expand(sum(module.out_features for module in modules), -1)
        weights = [getattr(module, PACKED) for module in modules]
        if isinstance(weights[0], RoundedWeight) and (weights[0].biases is None or not paths.multiplies_packed()):
            return super()._hold_packed(modules)
        return AffineLinear(like, biases_of(modules), joined(weights), paths.num_threads, paths.product_dtype)

    def attend_positions(
        self, batch: PackedBatch, query: torch.Tensor, kv: KeysValues, params: AttentionParams, *, first_query: int
    ) -> torch.Tensor:
        """See `DeviceOps`."""
        paths, has_many = self._paths, query.shape[2] >= MIN_QUERIES
        if has_many and params.is_plain and paths.attends_in_tiles:
            return attend_in_tiles(query, kv, params, first_query=first_query, num_threads=paths.num_threads)
        if paths.multiplies_by_onednn and (has_many or not params.is_plain):
            is_kept = paths.multiplies_bfloat16
            return attend_in_blocks(query, kv, params, first_query=first_query, multiplies_bfloat16=is_kept)
        return super().attend_positions(batch, query, kv, params, first_query=first_query)


def attend_in_blocks(
    query: torch.Tensor, kv: KeysValues, params: AttentionParams, *, first_query: int, multiplies_bfloat16: bool = False
) -> torch.Tensor:
    """Attend as `eager.attention.attend_causally` does, multiplying by oneDNN."""
    return attend_causally(
        query, kv, params, first_query=first_query, multiply=product, multiplies_bfloat16=multiplies_bfloat16
    )


def attend_in_tiles(
    query: torch.Tensor, kv: KeysValues, params: AttentionParams, *, first_query: int, num_threads: int
) -> torch.Tensor:
    """Attend as `eager.attention.attend_causally` does, by Baton's own kernel; threads share out the query heads.

    On two threads of an EPYC with AVX2, 9 heads of 64 elements over 3 KV heads, 512 queries after 3584 positions take
    36 ms where blocks by oneDNN take 56; 2048 queries take 40, by blocks 62, by torch's own kernel 44.
    """
    from baton.engine.runners.torch.ops.cpu.numba_kernels.attention import attend_prompt
    from baton.engine.runners.torch.ops.cpu.numba_kernels.team import team_of

    output = torch.empty(*query.shape[:3], kv.values.shape[-1])
    arrays = [array_of(tensor.float().contiguous()) for tensor in (query, *kv)]
    scaling, window_tokens = np.float32(params.scaling), params.window_tokens
    attend_prompt(team_of(num_threads), *arrays, first_query, window_tokens, scaling, array_of(output))
    return output.to(query.dtype)


class OneThreadOps(CpuOps):
    """Operations of one thread, by kernels that know no other: no dispatch, few intermediate tensors."""

    def __init__(self, device: torch.device, paths: CpuPaths) -> None:
        from baton.engine.runners.torch.ops.cpu.numba_kernels import decode_step
        from baton.engine.runners.torch.ops.cpu.numba_kernels.team import MEMBER_ALONE

        super().__init__(device, paths)
        self._kernels, self._member = decode_step, MEMBER_ALONE

    def normalise(self, rows: torch.Tensor, norm: Norm) -> torch.Tensor:
        """See `DeviceOps`."""
        output = torch.empty_like(rows)
        self._kernels.normalise(array_of(rows), array_of(norm.weight), norm.epsilon, array_of(output))
        return output

    def gate(self, gate_up: torch.Tensor) -> torch.Tensor:
        """See `DeviceOps`."""
        output = gate_up.new_empty(gate_up.shape[0], gate_up.shape[1] // 2)
        self._kernels.gate(array_of(gate_up), array_of(output))
        return output

    def rotate_and_store(
        self, heads: torch.Tensor, rotation: Rotation, norms: HeadNorms | None, batch: RowBatch, layer: int
    ) -> torch.Tensor:
        """See `DeviceOps`; heads that are normalised, and K and V that sinks want, are left to torch."""
        if norms is not None or batch.has_sinks or not isinstance(batch, PackedBatch):
            return super().rotate_and_store(heads, rotation, norms, batch, layer)
        blocks = batch.pool.arrays(layer)
        num_rows, num_all, head_dim = heads.shape
        queries = heads.new_empty(num_rows, num_all - 2 * len(blocks[0]), head_dim)
        angles = (array_of(rotation.cosines), array_of(rotation.signed_sines))
        slots = array_of(batch.slots())
        self._kernels.rotate_and_store(self._member, array_of(heads), *angles, slots, *blocks, array_of(queries))
        return queries.transpose(0, 1)


class StreamedLayer(NamedTuple):
    """What a layer is to the kernels."""

    weights: tuple[Array, ...]
    """Those of both norms; weight and bias of queries, keys and values, of the output, of gates and others, of down."""
    epsilon: float
    params: AttentionParams
    num_gates: int
    max_rows: int
    """Rows up to which the kernels are worth it."""

    def is_like(self, other: StreamedLayer) -> bool:
        """Return whether nothing but numbers in memory makes the difference to another."""
        kinds = ([(array.shape, array.dtype) for array in layer.weights] for layer in (self, other))
        return self[1:] == other[1:] and next(kinds) == next(kinds)


class KernelDecodeStep:
    """Layers, each like the first, whose weights are read once per step: one call of kernels, which threads share."""

    def __init__(
        self, layers: Sequence[StreamedLayer], head: CpuLinear, *, num_query_heads: int, num_threads: int
    ) -> None:
        from baton.engine.runners.torch.ops.cpu.numba_kernels.attention import attention_address
        from baton.engine.runners.torch.ops.cpu.numba_kernels.decode_step import run_layers
        from baton.engine.runners.torch.ops.cpu.numba_kernels.team import team_of

        self._run_layers, self._attention_address = partial(run_layers, team_of(num_threads)), attention_address
        self._layers = layers
        self._head = head.arrays()[0]
        self._num_query_heads = num_query_heads
        self._pool: KvPool | None = None
        self._addresses = np.empty((0, 0), np.int64)

    def serves(self, batch: RowBatch) -> bool:
        """Return whether a batch is one token of each sequence, with logits, without handing over, adapters aside."""
        num_rows, max_rows = len(batch.segments), self._layers[0].max_rows
        is_plain = isinstance(batch, PackedBatch) and not (batch.has_sinks or batch.adapted)
        return is_plain and 0 < num_rows <= max_rows and batch.num_rows == batch.num_logits == num_rows

    def __call__(self, hidden: torch.Tensor, rotation: Rotation, batch: RowBatch) -> torch.Tensor:
        """See `DecodeStep`; the batch is served."""
        assert isinstance(batch, PackedBatch), "the batch is not served"
        weights, epsilon, params, num_gates, _ = self._layers[0]
        keys, values = batch.pool.arrays(0)
        group, is_bfloat16 = self._num_query_heads // len(keys), hidden.dtype is torch.bfloat16
        address = self._attention_address(group, keys.shape[3], values.shape[3], is_bfloat16=is_bfloat16)
        single = single_queries(batch, batch.segments, params.window_tokens)
        assert single is not None, "a batch of single queries has some"
        self._run_layers(
            array_of(hidden),
            self._addresses_with(batch.pool),
            (*weights, keys, values, epsilon),
            num_gates,
            tuple(array_of(angle.contiguous()) for angle in rotation),
            array_of(batch.slots()),
            (address, self._num_query_heads, tuple(single), np.float32(params.scaling)),
            self._head,
        )
        return hidden

    def _addresses_with(self, pool: KvPool) -> Array:
        """Return the addresses of all layers' weights, K and V: [num_layers, 12]."""
        if self._pool is not pool:
            rows = [(*layer.weights, *pool.arrays(index)) for index, layer in enumerate(self._layers)]
            self._addresses = np.array([[array.ctypes.data for array in row] for row in rows], np.int64)
            self._pool = pool
        return self._addresses


class SingleQueries(NamedTuple):
    """Where the queries are, and what they see; the same in all layers of a kind."""

    rows: Indices
    """Row of each query: [num_sequences]."""
    tables: Indices
    """Blocks of its sequence: [num_sequences, most_blocks]; past a sequence's own they mean nothing."""
    spans: Indices
    """Positions [first, end) that it sees: [num_sequences, 2]."""


def pack_single_queries(
    rows: Sequence[int], tables: Sequence[Sequence[int]], spans: Sequence[tuple[int, int]]
) -> SingleQueries:
    """Return the arrays of one or more queries."""
    padded = np.zeros((len(tables), max(len(table) for table in tables)), np.int64)
    for index, table in enumerate(tables):
        padded[index, : len(table)] = table
    return SingleQueries(np.array(rows, np.int64), padded, np.array(spans, np.int64))


def attend_single(
    query: torch.Tensor, kv: tuple[Array, Array], single: SingleQueries, scaling: float, output: Any
) -> None:
    """Answer single queries, of any strides, from all blocks of a layer in place, as `attend` of the kernels does."""
    from baton.engine.runners.torch.ops.cpu.numba_kernels.attention import attend, attention_address
    from baton.engine.runners.torch.ops.cpu.numba_kernels.team import MEMBER_ALONE

    keys, values = kv
    group, is_bfloat16 = query.shape[1] // keys.shape[0], query.dtype is torch.bfloat16
    address = attention_address(group, keys.shape[3], values.shape[3], is_bfloat16=is_bfloat16)
    attend(
        MEMBER_ALONE,
        address,
        array_of(query.contiguous()),
        keys,
        values,
        tuple(single),
        np.float32(scaling),
        array_of(output),
    )


def single_queries(batch: PackedBatch, segments: Sequence[QuerySegment], window_tokens: int) -> SingleQueries | None:
    """Return those of a batch's `segments` or `last_segments` that are one query; None if there is none.

    `window_tokens`: positions that a query sees, its own included; 0: all.
    """

    def make() -> SingleQueries | None:
        chosen = [segment for segment in segments if segment.num_rows == 1]
        first = [max(0, segment.end - window_tokens) if window_tokens else 0 for segment in chosen]
        rows, tables = [segment.first_row for segment in chosen], [segment.table.ids for segment in chosen]
        spans = list(zip(first, (segment.end for segment in chosen), strict=True))
        return pack_single_queries(rows, tables, spans) if chosen else None

    return batch.once(("single", segments is batch.segments, window_tokens), make)


def _streamed(layer: LayerParts) -> StreamedLayer | None:
    """Return a layer as the kernels take it, or None where they do not serve."""
    norms = layer.norms
    linears = [each for each in layer.products if isinstance(each, CpuLinear) and each.num_streamed_rows]
    if len(linears) < len(layer.products) or not layer.attention.is_plain or layer.head_norms is not None:
        return None
    if any(norm.weight.dtype is not linears[0].dtype or norm.epsilon != norms[0].epsilon for norm in norms):
        return None
    weights = [array_of(norm.weight.detach()) for norm in norms]
    weights += [array for linear in linears for array in linear.arrays()]
    max_rows = min(linear.num_streamed_rows for linear in linears)
    return StreamedLayer(tuple(weights), norms[0].epsilon, layer.attention, linears[2].num_outputs // 2, max_rows)
