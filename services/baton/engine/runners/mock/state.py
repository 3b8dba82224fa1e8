"""The arithmetic of the mock model: one 64-bit state per layer and position, whence K, V and the next token follow."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from baton.engine.runners.base import LayerKv
from baton.kv.kv_format import KvDtype, LayerSpec

States = np.ndarray[tuple[int, ...], np.dtype[np.uint64]]
Positions = np.ndarray[tuple[int, ...], np.dtype[np.int64]]

_WORD_BYTES = 8
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def mix(values: States) -> States:
    """Return a bijective scramble of 64-bit values. Source: splitmix64 (Steele et al. 2014, section 4)."""
    mixed = values + _GOLDEN
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))


def states_of(token_ids: Sequence[int], start: int, num_layers: int) -> States:
    """Return the states of consecutive positions: [num_layers, num_tokens]."""
    return states_at(token_ids, np.arange(start, start + len(token_ids)), num_layers)


def states_at(token_ids: Sequence[int], positions: Positions, num_layers: int) -> States:
    """Return the states of tokens at any positions: [num_layers, num_tokens]."""
    per_token = mix(mix(positions.astype(np.uint64)) ^ np.asarray(token_ids, dtype=np.uint64))
    layers = mix(np.arange(num_layers, dtype=np.uint64))
    return mix(per_token[None, :] ^ layers[:, None])


def kv_of(states: States, spec: LayerSpec, dtype: KvDtype) -> LayerKv:
    """Return the K and V of one layer's states: every word of a K row is the state, of a V row its complement."""
    return LayerKv(
        _tile(states, spec.num_kv_heads, spec.key_head_dim, dtype),
        _tile(~states, spec.num_kv_heads, spec.value_head_dim, dtype),
    )


def states_from(kv: LayerKv, num_tokens: int, spec: LayerSpec) -> States:
    """Return the states that bytes stand for: [num_tokens]. One wrong bit gives another state, and so another text."""
    keys = np.frombuffer(kv.keys, dtype=np.uint64).reshape(spec.num_kv_heads, num_tokens, -1)
    values = np.frombuffer(kv.values, dtype=np.uint64).reshape(spec.num_kv_heads, num_tokens, -1)
    states = keys[0, :, 0].copy()
    if _is_tiled(keys, states) and _is_tiled(values, ~states):
        return states
    is_sound = (keys == states[None, :, None]).all((0, 2)) & (values == ~states[None, :, None]).all((0, 2))
    digest = mix(keys.sum((0, 2), dtype=np.uint64)) ^ values.sum((0, 2), dtype=np.uint64)
    return np.where(is_sound, states, mix(digest))


def next_tokens(sums: States, vocabulary_size: int, excluded: frozenset[int]) -> list[int]:
    """Return the tokens after positions whose states have these sums, [num_sequences]; never one of `excluded`."""
    token_ids: list[int] = (mix(sums) % np.uint64(vocabulary_size)).tolist()
    if not excluded.isdisjoint(token_ids):
        return [_first_allowed(token_id, vocabulary_size, excluded) for token_id in token_ids]
    return token_ids


def state_bytes(num_layers: int) -> int:
    """Return what one position takes: a state of each layer, and their sum."""
    return (num_layers + 1) * _WORD_BYTES


def words_per_row(head_dim: int, dtype: KvDtype) -> int:
    """Return the 64-bit words of one head's vector; raise ValueError if it is not a whole number of words."""
    words, rest = divmod(head_dim * dtype.num_bytes, _WORD_BYTES)
    if rest:
        raise ValueError(f"a head of {head_dim} {dtype.value} elements is not a whole number of 64-bit words")
    return words


def _first_allowed(token_id: int, vocabulary_size: int, excluded: frozenset[int]) -> int:
    while token_id in excluded:
        token_id = (token_id + 1) % vocabulary_size
    return token_id


def _is_tiled(rows: States, states: States) -> bool:
    """Return whether each state is repeated over a row, for every head alike.

    Heads are compared with the first one: 15 GB/s, where a state stretched to a row has 7 to 11.
    """
    return bool((rows[0] == states[:, None]).all() and (rows[1:] == rows[0]).all())


def _tile(states: States, num_heads: int, head_dim: int, dtype: KvDtype) -> memoryview:
    """Return each state repeated over a row, for every head alike. Without the interpreter's lock, unlike `tobytes`."""
    rows = np.empty((num_heads, len(states), words_per_row(head_dim, dtype)), np.uint64)
    rows[:1] = states[None, :, None]
    rows[1:] = rows[:1]
    return rows.reshape(-1).view(np.uint8).data
