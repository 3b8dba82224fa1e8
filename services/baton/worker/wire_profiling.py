"""Measures, before a node serves, how fast it packs KV into each number format and what each loses on its model.

The loss is a short calibration on random tokens: the model reads a context once, then the same continuation again and
again, each time with K or V of the context passed through one format. The rows of a mock are no numbers: nothing is
measured.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from baton.capacity.wire import WireAbility
from baton.engine.runners.base import Array, LayerKv, Runner, Span
from baton.engine.runners.mock import MockRunner
from baton.kv.layout import KvDtype
from baton.kv.wire import wire_dtypes

CONTEXT_TOKENS, CONTINUATION_TOKENS = 128, 32
SAMPLE_BYTES = 1 << 20
"""Cache that is packed to take the time."""
_SEED = 7


def measure_wires(
    runner: Runner, *, has_losses: bool, clock: Callable[[], float] = time.perf_counter
) -> tuple[WireAbility, ...]:
    """Return what a node can do besides its cache's own format.

    The blocks used are left as they are: nothing refers to them yet.

    Args:
        runner: The loaded model.
        has_losses: Whether to calibrate; who only receives need not.
        clock: Seconds, monotonic.
    """
    dtypes = wire_dtypes(runner.info.layout)[1:]
    losses = measure_losses(runner, dtypes) if has_losses else {}
    return tuple(_ability(runner, dtype, losses.get(dtype, UNKNOWN), clock) for dtype in dtypes)


class Losses(NamedTuple):
    """What a format loses, in nats (baton.capacity.wire)."""

    keys: float
    """Where K alone goes through it."""
    values: float
    """Where V alone goes through it."""


UNKNOWN = Losses(math.inf, math.inf)
"""Of formats that were not measured; no bound allows them."""


def measure_losses(runner: Runner, dtypes: tuple[KvDtype, ...]) -> dict[KvDtype, Losses]:
    """Return what each format loses; nothing for a mock, and where the node's blocks hold too little to tell."""
    if isinstance(runner, MockRunner):
        return {}
    capacity = min(runner.num_blocks * runner.block_tokens, runner.info.max_context_tokens)
    if capacity < CONTEXT_TOKENS + CONTINUATION_TOKENS:
        return {}
    calibration = _Calibration(runner)
    return {
        dtype: Losses(calibration.loss(dtype, is_keys=True), calibration.loss(dtype, is_keys=False)) for dtype in dtypes
    }


class _Calibration:
    """A context in the first blocks of a runner, and what the model makes of it untouched."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        num_tokens = CONTEXT_TOKENS + CONTINUATION_TOKENS
        self._table = list(range(-(-num_tokens // runner.block_tokens)))
        drawn = np.random.default_rng(_SEED).integers(0, runner.info.vocabulary_size, num_tokens)
        self._token_ids = [int(token_id) for token_id in drawn]
        runner.forward([Span(self._token_ids[:CONTEXT_TOKENS], 0, self._table, needs_logits=True)]).argmax()
        layers = range(runner.info.layout.num_layers)
        self._context = [runner.read_kv(self._table, layer, 0, CONTEXT_TOKENS) for layer in layers]
        self._untouched = self._log_probabilities()

    def loss(self, dtype: KvDtype, *, is_keys: bool) -> float:
        for layer, kv in enumerate(self._context):
            self._write(layer, self._rounded(kv, layer, dtype, is_keys=is_keys))
        changed = self._log_probabilities()
        divergence = (np.exp(self._untouched) * (self._untouched - changed)).sum(axis=1).mean()
        return max(0.0, float(divergence)) if np.isfinite(divergence) else math.inf

    def _rounded(self, kv: LayerKv, layer: int, dtype: KvDtype, *, is_keys: bool) -> LayerKv:
        layout, codec = self._runner.info.layout, self._runner.wire_codec
        spec, cache = layout.layers[layer], layout.dtype
        data, head_dim = (kv.keys, spec.key_head_dim) if is_keys else (kv.values, spec.value_head_dim)
        back = codec.unpack(codec.pack(data, cache, dtype, head_dim), cache, dtype, head_dim)
        return LayerKv(back, kv.values) if is_keys else LayerKv(kv.keys, back)

    def _write(self, layer: int, kv: LayerKv) -> None:
        self._runner.write_kv(self._table, layer, 0, CONTEXT_TOKENS, kv)

    def _log_probabilities(self) -> Array:
        continuation = self._token_ids[CONTEXT_TOKENS:]
        span = Span(continuation, CONTEXT_TOKENS, self._table, needs_logits=True, logits_from=CONTEXT_TOKENS)
        logits = self._runner.forward([span]).rows().astype(np.float64)
        shifted = logits - logits.max(axis=1, keepdims=True)
        log_probabilities: Array = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
        return log_probabilities


def _ability(runner: Runner, dtype: KvDtype, losses: Losses, clock: Callable[[], float]) -> WireAbility:
    layout, codec = runner.info.layout, runner.wire_codec
    head_dim = layout.layers[0].key_head_dim
    num_rows = max(1, SAMPLE_BYTES // (head_dim * layout.dtype.num_bytes))
    data = bytes(num_rows * head_dim * layout.dtype.num_bytes)
    packed = codec.pack(data, layout.dtype, dtype, head_dim)
    pack_seconds = min(_timings(lambda: codec.pack(data, layout.dtype, dtype, head_dim), clock))
    unpack_seconds = min(_timings(lambda: codec.unpack(packed, layout.dtype, dtype, head_dim), clock))
    return WireAbility(dtype.value, len(data) / pack_seconds, len(data) / unpack_seconds, *losses)


def _timings(work: Callable[[], object], clock: Callable[[], float]) -> Iterator[float]:
    for _ in range(3):
        started = clock()
        work()
        yield max(clock() - started, 1e-9)
