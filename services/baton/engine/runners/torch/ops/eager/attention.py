"""The attention function that transformers' layers call: writes K and V into blocks, attends to what is live."""

from __future__ import annotations

from enum import Enum, auto

import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface

from baton.engine.runners.torch.batch import PackedBatch, QuerySegment, RowBatch
from baton.engine.runners.torch.ops.cpu.attention import attend_in_tiles, attend_single, is_fastest
from baton.engine.runners.torch.ops.cpu.kernel_checks import can_attend
from baton.engine.runners.torch.ops.cuda.paged_attention import attend_paged
from baton.engine.runners.torch.ops.eager.blocked_attention import AttentionParams, attend_causally, is_faster
from baton.engine.runners.torch.pool import KeysValues

ATTENTION_NAME = "baton"
"""Value of `attn_implementation`. No mask function bears this name, so that transformers builds no mask."""

_OTHER_ARGUMENTS = {"dropout", "output_router_logits", "position_ids", "sliding_window", "use_cache"}
"""What transformers' layers pass on besides, without effect on attention when a trained model is run."""


class Stage(Enum):
    """Which rows a layer is given, and what is wanted of it."""

    ALL_ROWS = auto()
    """All: write K and V, attend."""
    STORE = auto()
    """All: write K and V, then stop by raising `KvStored`."""
    LAST_ROWS = auto()
    """Those that need logits; K and V are written already: attend."""


class KvStored(Exception):  # noqa: N818 - a signal, not an error
    """Leaves a layer whose K and V were all that was wanted."""


def register_attention() -> None:
    """Make `attend` known to transformers; doing so again changes nothing."""
    AttentionInterface.register(ATTENTION_NAME, attend)


def attend(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: None,  # noqa: ARG001 - part of transformers' signature
    *,
    scaling: float,
    baton_batch: RowBatch,
    baton_stage: Stage = Stage.ALL_ROWS,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    **others: object,
) -> tuple[torch.Tensor, None]:
    """Attend by sequence over a packed row of tokens.

    Args:
        module: The layer's attention; knows its `layer_idx`.
        query: [1, num_heads, num_rows, head_dim], rotated.
        key: [1, num_kv_heads, num_rows, head_dim], rotated.
        value: [1, num_kv_heads, num_rows, head_dim].
        attention_mask: Not used.
        scaling: Factor of the scores.
        baton_batch: The rows' sequences.
        baton_stage: What to do.
        softcap: Bound towards which scores are bent.
        s_aux: Scores of the heads' sinks.
        others: What says nothing new: the sliding window is the cache layout's.

    Returns:
        [1, num_rows, num_heads, head_dim], and no weights.

    Raises:
        KvStored: In stage `STORE`.
        TypeError: If the model wants something of its attention that is not done here.
    """
    if unknown := others.keys() - _OTHER_ARGUMENTS:
        raise TypeError(f"attention has no {', '.join(sorted(unknown))}")
    layer = module.layer_idx
    if baton_stage is not Stage.LAST_ROWS:
        store(baton_batch, layer, KeysValues(key[0], value[0]))
    if baton_stage is Stage.STORE:
        raise KvStored
    segments = baton_batch.last_segments if baton_stage is Stage.LAST_ROWS else baton_batch.segments
    scoring = AttentionParams(scaling, baton_batch.pool.window_tokens(layer), softcap or 0.0, s_aux)
    return attend_rows(baton_batch, segments, layer, query[0], scoring).transpose(0, 1)[None], None


def store(batch: RowBatch, layer: int, kv: KeysValues) -> None:
    """Write K and V of all rows of a batch into their blocks, and hand them to the spans' sinks."""
    batch.pool.write_slots(layer, batch.slots(), kv)
    for span, segment in zip(batch.spans, batch.segments, strict=True):
        if span.layer_sink is not None:
            rows = slice(segment.first_row, segment.first_row + segment.num_rows)
            own = KeysValues(kv.keys[:, rows], kv.values[:, rows])
            if batch.kv_copies is None:
                span.layer_sink(layer, own.to_layer_kv())
            else:
                batch.kv_copies.add(span.layer_sink, layer, own)


def attend_rows(
    batch: RowBatch, segments: tuple[QuerySegment, ...], layer: int, query: torch.Tensor, scoring: AttentionParams
) -> torch.Tensor:
    """Attend from rows to what their sequences have in the blocks.

    Args:
        batch: The rows' sequences.
        segments: Whose rows they are, in order; 1 or more.
        layer: The layer.
        query: [num_heads, num_rows, head_dim], rotated.
        scoring: How scores become weights.

    Returns:
        [num_heads, num_rows, head_dim].
    """
    if batch.is_paged:
        pool = batch.pool.layer(layer)
        queries = batch.paged(segments, query.shape[0] // pool.keys.shape[0], query.shape[2], query.dtype)
        return attend_paged(query.transpose(0, 1), pool, queries, scoring).transpose(0, 1)
    assert isinstance(batch, PackedBatch), "only packed rows are attended from sequence by sequence"
    single = batch.single_queries(segments, scoring.window_tokens) if _is_paged(query, scoring) else None
    if single is None:
        return torch.cat([_attend_segment(batch, segment, layer, query, scoring) for segment in segments], dim=1)
    blocks = batch.pool.arrays(layer)
    output = query.new_empty(query.shape[1], query.shape[0], blocks[1].shape[-1])
    attend_single(query.transpose(0, 1), blocks, single, scoring.scaling, output)
    for segment in segments:
        if segment.num_rows > 1:
            rows = slice(segment.first_row, segment.first_row + segment.num_rows)
            output[rows] = _attend_segment(batch, segment, layer, query, scoring).transpose(0, 1)
    return output.transpose(0, 1)


def _is_paged(query: torch.Tensor, scoring: AttentionParams) -> bool:
    """Return whether single queries are answered from the blocks in place."""
    return scoring.is_plain and query.is_cpu and can_attend(query.dtype)


def _attend_segment(
    batch: PackedBatch, segment: QuerySegment, layer: int, query: torch.Tensor, scoring: AttentionParams
) -> torch.Tensor:
    """Attend from the rows of one sequence: [num_heads, num_rows, head_dim].

    Interval table: keys [0, first_key) are outside every query's window; [first_key, end) are read from the blocks.
    """
    first_key = max(0, segment.start + 1 - scoring.window_tokens) if scoring.window_tokens else 0
    keys, values = kv = batch.pool.read(segment.table, layer, first_key, segment.end)
    rows = query[:, segment.first_row : segment.first_row + segment.num_rows]
    num_heads, num_rows, head_dim = rows.shape
    grouped = rows.reshape(keys.shape[0], -1, num_rows, head_dim)
    if is_fastest(query, num_rows, scoring):
        output = attend_in_tiles(grouped, kv, scoring, first_query=segment.start - first_key)
    elif not scoring.is_plain or is_faster(query, num_rows):
        output = attend_causally(grouped, kv, scoring, first_query=segment.start - first_key)
    elif num_rows == 1:
        # The heads of a group see the same keys, all of them: they are queries of one head.
        output = scaled_dot_product_attention(grouped[None, :, :, 0], keys[None], values[None], scale=scoring.scaling)
    else:
        output = _attend_chunk(batch, segment, first_key, grouped, kv, scoring)
    return output.reshape(num_heads, num_rows, -1)


def _attend_chunk(
    batch: PackedBatch,
    segment: QuerySegment,
    first_key: int,
    query: torch.Tensor,
    kv: KeysValues,
    scoring: AttentionParams,
) -> torch.Tensor:
    """Attend causally from several positions: [num_kv_heads, num_groups, num_rows, head_dim]."""
    window_tokens = scoring.window_tokens
    keys, values = (tensor[:, None].expand(-1, query.shape[1], -1, -1) for tensor in kv)
    is_whole = segment.start == 0 and (window_tokens == 0 or segment.end <= window_tokens)
    mask = None if is_whole else batch.mask(segment, first_key, window_tokens)
    return scaled_dot_product_attention(query, keys, values, attn_mask=mask, is_causal=is_whole, scale=scoring.scaling)
