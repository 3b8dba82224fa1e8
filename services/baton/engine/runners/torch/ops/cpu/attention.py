"""The sequences of a pass that ask one query each, as the attention kernel takes them.

Causal attention of prompts by Baton's own kernel, on CPUs that it serves better than a library.

Threads share the query heads out among themselves. On two threads of an EPYC with AVX2, 9 heads of 64 elements over 3
KV heads, 512 queries after 3584 positions take 36 ms where blocks by oneDNN take 56; 2048 queries take 40, by blocks
62, by torch's own kernel 44.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import product
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.nn.functional import scaled_dot_product_attention

from baton.engine.runners.torch.ops.cpu.kernel_checks import Array, array_of, can_attend_prompts
from baton.engine.runners.torch.ops.cpu.onednn import is_sound
from baton.engine.runners.torch.ops.cpu.trial import gain
from baton.engine.runners.torch.ops.eager.blocked_attention import MIN_QUERIES, AttentionParams, attend_causally
from baton.engine.runners.torch.pool import KeysValues

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


log = logging.getLogger(__name__)

_TRIAL_ROUNDS, _TRIAL_QUERIES = 5, 256


def is_fastest(query: torch.Tensor, num_queries: int, scoring: AttentionParams) -> bool:
    """Return whether the kernel beats blocks by oneDNN and torch's own kernel, found by trying once."""
    return query.is_cpu and num_queries >= MIN_QUERIES and scoring.is_plain and prepare(query.dtype)


def prepare(dtype: torch.dtype) -> bool:
    """Return whether the kernel is the fastest for prompts in a dtype; the first call compiles and tries it."""
    return can_attend_prompts() and _beats_others(dtype, torch.get_num_threads())


def attend_in_tiles(query: torch.Tensor, kv: KeysValues, scoring: AttentionParams, *, first_query: int) -> torch.Tensor:
    """Attend from consecutive positions to all before them, as `blocked_attention.attend_causally` does.

    Args:
        query: [num_kv_heads, num_groups, num_queries, head_dim], rotated.
        kv: Keys and values, one per position.
        scoring: How scores become weights; plain.
        first_query: Position of the first query, counted from the first key.

    Returns:
        [num_kv_heads, num_groups, num_queries, value_head_dim].
    """
    from baton.engine.runners.torch.ops.cpu.numba_kernels.prompt_attention import attend_prompt

    output = torch.empty(*query.shape[:3], kv.values.shape[-1])
    queries, keys, values = (array_of(tensor.float().contiguous()) for tensor in (query, *kv))
    results, scaling = array_of(output), np.float32(scoring.scaling)

    def attend(heads: slice, groups: slice) -> None:
        own = (queries[heads, groups], keys[heads], values[heads])
        attend_prompt(*own, first_query, scoring.window_tokens, scaling, results[heads, groups])

    num_threads = torch.get_num_threads()
    if num_threads == 1:
        attend(slice(None), slice(None))
    else:
        parts = product(*([slice(place, place + 1) for place in range(count)] for count in query.shape[:2]))
        list(_threads(num_threads).map(lambda part: attend(*part), parts))  # raises what a part raised
    return output.to(query.dtype)


@cache
def _threads(count: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(count, "attention")


@cache
def _beats_others(dtype: torch.dtype, num_threads: int) -> bool:
    """Return whether the kernel is done sooner than what else there is on so many threads, which torch has."""
    generator = torch.Generator().manual_seed(0)
    query = torch.randn(3, 3, _TRIAL_QUERIES, 64, generator=generator).to(dtype)
    kv = KeysValues(*(torch.randn(3, 2 * _TRIAL_QUERIES, 64, generator=generator).to(dtype) for _ in range(2)))
    question, other = (
        (query, kv, AttentionParams(0.125)),
        attend_causally if is_sound(torch.float32) else _attend_by_torch,
    )
    found = gain(
        lambda: attend_in_tiles(*question, first_query=_TRIAL_QUERIES),
        lambda: other(*question, first_query=_TRIAL_QUERIES),
        num_rounds=_TRIAL_ROUNDS,
        clock=time.monotonic,
    )
    name = str(dtype).rpartition(".")[2]
    log.info("prompts_attended dtype=%s threads=%d gain_of_tiles=%.2f", name, num_threads, found)
    return found > 1


def _attend_by_torch(
    query: torch.Tensor, kv: KeysValues, scoring: AttentionParams, *, first_query: int
) -> torch.Tensor:
    num_queries, num_keys = query.shape[2], kv.keys.shape[1]
    mask = torch.ones(num_queries, num_keys, dtype=torch.bool).tril(first_query)
    keys, values = (tensor[:, None].expand(-1, query.shape[1], -1, -1) for tensor in kv)
    return scaled_dot_product_attention(query, keys, values, attn_mask=mask, scale=scoring.scaling)
