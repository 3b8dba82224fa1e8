"""What layers of mlx-lm keep of a sequence besides K and V: an array or two for each slot."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import mlx.core as mx
import numpy as np

from baton.engine.runners.base import LayerKv
from baton.kv.kv_format import LayerSpec


class _Row(NamedTuple):
    """A state among those that were computed together: arrays are not split, lest a step copy them."""

    arrays: tuple[mx.array, ...]
    """[num_rows, ...] each."""
    number: int

    def alone(self) -> _Row:
        """Return the same without the others."""
        return _Row(tuple(mx.contiguous(array[self.number : self.number + 1]) for array in self.arrays), 0)


class LayerStates:
    """States of one layer by slot, in the shapes of mlx-lm.

    `is_turned`: mlx-lm has the last two dimensions of the recurrent state the other way round than kv.proto. `arrays`:
    what has come about since `begin` of it was called.
    """

    def __init__(self, spec: LayerSpec, dtype: mx.Dtype, *, is_turned: bool) -> None:
        self.spec = spec
        self.arrays: list[mx.array] = []
        self._dtype, self._is_turned = dtype, is_turned
        self._rows: dict[int, _Row] = {}
        zeros = (self._turned(tensor.name, mx.zeros((1, *tensor.shape))) for tensor in spec.state)
        self._first = _Row(tuple(map(self._in_dtype, (tensor.name for tensor in spec.state), zeros)), 0)
        mx.eval(self._first.arrays)

    def read(self, slots: Sequence[int | None]) -> tuple[mx.array, ...]:
        """Return the states of some slots, [len(slots), ...] each; None: that before the first position."""
        rows = [self._first if slot is None else self._rows.get(slot, self._first) for slot in slots]
        arrays = rows[0].arrays
        if all(row.arrays is arrays for row in rows) and [row.number for row in rows] == list(range(len(arrays[0]))):
            return arrays
        for slot, row in self._rows.items():  # of a batch that is no more, nothing is kept but what somebody needs
            if slot not in slots and len(row.arrays[0]) > 1 and any(row.arrays is other.arrays for other in rows):
                self._set(slot, row.alone())
        columns = zip(*([array[row.number : row.number + 1] for array in row.arrays] for row in rows), strict=True)
        return tuple(mx.concatenate(list(column)) for column in columns)

    def write(self, slots: Sequence[int], arrays: tuple[mx.array, ...]) -> None:
        """Take the states of some slots, [len(slots), ...] each."""
        for index, slot in enumerate(slots):
            self._rows[slot] = _Row(arrays, index)
        self.arrays += arrays

    def copy(self, source: int, target: int) -> None:
        """Copy a state into another slot."""
        self._set(target, self._rows[source].alone())

    def to_kv(self, slot: int) -> LayerKv:
        """Return a state on the host, as a sink takes it."""
        parts = []
        for tensor, array in zip(self.spec.state, self._rows[slot].alone().arrays, strict=True):
            parts.append(self._turned(tensor.name, array).astype(mx.float32).reshape(-1))
        return LayerKv(np.array(mx.concatenate(parts)).tobytes(), b"")

    def write_bytes(self, slot: int, data: bytes | memoryview) -> None:
        """Write a state that `to_kv` returned, here or elsewhere."""
        numbers, arrays = mx.array(np.frombuffer(data, "<f4")), []
        for tensor in self.spec.state:
            size = tensor.num_bytes // 4
            array = mx.contiguous(self._turned(tensor.name, numbers[:size].reshape(1, *tensor.shape)))
            arrays.append(self._in_dtype(tensor.name, array))
            numbers = numbers[size:]
        self.write([slot], tuple(arrays))

    def _set(self, slot: int, row: _Row) -> None:
        self._rows[slot] = row
        self.arrays += row.arrays

    def _in_dtype(self, name: str, array: mx.array) -> mx.array:
        return array.astype(self._dtype) if name == "conv" else array

    def _turned(self, name: str, array: mx.array) -> mx.array:
        return array.swapaxes(-1, -2) if name == "recurrent" and self._is_turned else array


class StateCache:
    """What mlx-lm's layers take for their cache: arrays by number."""

    lengths = None

    def __init__(self, arrays: tuple[mx.array, ...]) -> None:
        self.arrays = [*arrays]

    def __getitem__(self, index: int) -> mx.array:
        return self.arrays[index]

    def __setitem__(self, index: int, array: mx.array) -> None:
        self.arrays[index] = array

    def advance(self, num_tokens: int) -> None:
        """Take note of the positions computed, which need no counting here."""
