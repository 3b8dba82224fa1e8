"""Attention on a CPU: single queries from the blocks in place, prompts in blocks by oneDNN or in tiles by a kernel."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import product as cartesian
from typing import Any, NamedTuple

import numpy as np
import torch

from baton.engine.runners.torch.ops.cpu.linear import product
from baton.engine.runners.torch.ops.device import Array, array_of
from baton.engine.runners.torch.ops.eager.attention import AttentionParams, attend_causally
from baton.engine.runners.torch.pool import KeysValues

MIN_QUERIES = 16
"""Queries from which blocks and tiles are worth their calls."""
Indices = np.ndarray[tuple[int, ...], np.dtype[np.int64]]
"""Whole numbers."""


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
    """Answer single queries from the blocks in place.

    Args:
        query: [num_rows, num_heads, key_head_dim], rotated; any strides.
        kv: All blocks of the layer: [num_kv_heads, num_blocks, block_tokens, head_dim] each.
        single: Which rows, and what they see.
        scaling: Factor of the scores.
        output: [num_rows, num_heads, value_head_dim]; the queries' rows are written.
    """
    from baton.engine.runners.torch.ops.cpu.numba_kernels.attention import attend, attention_address

    keys, values = kv
    group, is_bfloat16 = query.shape[1] // keys.shape[0], query.dtype is torch.bfloat16
    address = attention_address(group, keys.shape[3], values.shape[3], is_bfloat16=is_bfloat16)
    attend(address, array_of(query.contiguous()), keys, values, tuple(single), np.float32(scaling), array_of(output))


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

    Args:
        query: [num_kv_heads, num_groups, num_queries, head_dim], rotated.
        kv: Keys and values, one per position.
        params: How scores become weights; plain.
        first_query: Position of the first query, counted from the first key.
        num_threads: How many compute, 1 or more.

    Returns:
        [num_kv_heads, num_groups, num_queries, value_head_dim].
    """
    from baton.engine.runners.torch.ops.cpu.numba_kernels.attention import attend_prompt

    output = torch.empty(*query.shape[:3], kv.values.shape[-1])
    queries, keys, values = (array_of(tensor.float().contiguous()) for tensor in (query, *kv))
    results, scaling = array_of(output), np.float32(params.scaling)

    def attend(heads: slice, groups: slice) -> None:
        own = (queries[heads, groups], keys[heads], values[heads])
        attend_prompt(*own, first_query, params.window_tokens, scaling, results[heads, groups])

    if num_threads == 1:
        attend(slice(None), slice(None))
    else:
        parts = cartesian(*([slice(place, place + 1) for place in range(count)] for count in query.shape[:2]))
        list(_threads(num_threads).map(lambda part: attend(*part), parts))  # raises what a part raised
    return output.to(query.dtype)


@cache
def _threads(count: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(count, "attention")
