"""The sequences of a pass that ask one query each, as the attention kernel takes them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from baton.engine.runners.torch.compiled.support import Array, array_of

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
    from baton.engine.runners.torch.compiled.attention import attend, attention_address

    keys, values = kv
    group, is_bfloat16 = query.shape[1] // keys.shape[0], query.dtype is torch.bfloat16
    address = attention_address(group, keys.shape[3], values.shape[3], is_bfloat16=is_bfloat16)
    attend(address, array_of(query.contiguous()), keys, values, tuple(single), np.float32(scaling), array_of(output))
