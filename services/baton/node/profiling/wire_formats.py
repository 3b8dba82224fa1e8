"""Measures, before a node serves, how fast it packs KV into each number format and what each loses on its model.

The loss is a short calibration on random tokens: the model reads a context once, then the same continuation again and
again, each time with K or V of the context passed through one format, as after a remote prefill. The rows of a mock are
no numbers: nothing is measured.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from baton.capacity.kv_transfer import WireAbility
from baton.engine.runners.base import Array, LayerKv, Runner, Span, StateSpan
from baton.engine.runners.mock import MockRunner
from baton.kv.kv_format import KvDtype, WireFormat, sendable_dtypes

Doubles = np.ndarray[tuple[int, ...], np.dtype[np.float64]]

CONTEXT_TOKENS, CONTINUATION_TOKENS = 128, 32
SAMPLE_BYTES = 1 << 20
"""Cache that is packed to take the time."""
_SEED = 7


def measure_wires(runner: Runner, *, has_losses: bool) -> tuple[WireAbility, ...]:
    """Return what a node can do besides its cache's own format.

    The blocks used are left as they are: nothing refers to them yet. `has_losses`: it is calibrated, which who only
    receives need not be.
    """
    dtypes = sendable_dtypes(runner.info.layout)[1:]
    losses = measure_losses(runner, dtypes) if has_losses else {}
    return tuple(_ability(runner, dtype, losses.get(dtype, UNKNOWN)) for dtype in dtypes)


class Losses(NamedTuple):
    """What a format loses, in nats (baton.capacity.kv_transfer)."""

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
    drawn = np.random.default_rng(_SEED).integers(0, runner.info.vocabulary_size, CONTEXT_TOKENS + CONTINUATION_TOKENS)
    trial = WireTrial(runner, runner, [int(token_id) for token_id in drawn], CONTEXT_TOKENS)
    own = runner.info.layout.dtype
    untouched = log_probabilities(trial.logits(WireFormat(own, own)))

    def loss(wire: WireFormat) -> float:
        return mean_divergence(untouched, log_probabilities(trial.logits(wire)))

    return {dtype: Losses(loss(WireFormat(dtype, own)), loss(WireFormat(own, dtype))) for dtype in dtypes}


def log_probabilities(logits: Array) -> Doubles:
    """Return the logarithms of the probabilities that rows of logits stand for."""
    shifted = logits.astype(np.float64) - logits.max(axis=1, keepdims=True)
    normalised: Doubles = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    return normalised


def mean_divergence(expected: Doubles, actual: Doubles) -> float:
    """Return the mean Kullback-Leibler divergence of rows of log-probabilities, nats; inf where one is not finite."""
    divergence = float((np.exp(expected) * (expected - actual)).sum(axis=1).mean())
    return max(0.0, divergence) if math.isfinite(divergence) else math.inf


def _ability(runner: Runner, dtype: KvDtype, losses: Losses) -> WireAbility:
    layout, codec = runner.info.layout, runner.wire_codec
    head_dim = max(spec.key_head_dim for spec in layout.layers)
    num_rows = max(1, SAMPLE_BYTES // (head_dim * layout.dtype.num_bytes))
    data = bytes(num_rows * head_dim * layout.dtype.num_bytes)
    packed = codec.pack(data, layout.dtype, dtype, head_dim)
    pack_seconds = min(_timings(lambda: codec.pack(data, layout.dtype, dtype, head_dim)))
    unpack_seconds = min(_timings(lambda: codec.unpack(packed, layout.dtype, dtype, head_dim)))
    return WireAbility(dtype.value, len(data) / pack_seconds, len(data) / unpack_seconds, *losses)


def _timings(work: Callable[[], object]) -> Iterator[float]:
    for _ in range(3):
        started = time.perf_counter()
        work()
        yield max(time.perf_counter() - started, 1e-9)


class WireTrial:
    """A context, computed once by one runner, from which another goes on with the KV of any format.

    Uses the first blocks of both runners, to which nothing else may refer. `prefill` computes and packs the context, 1
    to len(token_ids) - 1 tokens, and `decode`, which may be the same runner, unpacks it and computes the continuation.
    """

    def __init__(self, prefill: Runner, decode: Runner, token_ids: Sequence[int], num_context_tokens: int) -> None:
        self._prefill, self._decode = prefill, decode
        self._token_ids = list(token_ids)
        self._num_context = num_context_tokens
        context = self._token_ids[:num_context_tokens]
        table = self._table(prefill)
        state = StateSpan(None, 0) if prefill.num_state_slots else None
        prefill.forward([Span(context, 0, table, needs_logits=True, state=state)]).argmax()
        layers = prefill.info.layout.kv_layers
        self._context = {layer: prefill.read_kv(table, layer, 0, num_context_tokens) for layer in layers}

    def logits(self, wire: WireFormat) -> Array:
        """Return the logits after every token of the continuation: [num_tokens, vocabulary_size], float32."""
        table = self._table(self._decode)
        for layer, kv in self._context.items():
            spec = self._prefill.info.layout.layers[layer]
            carried = LayerKv(
                self._through(kv.keys, wire.keys, spec.key_head_dim),
                self._through(kv.values, wire.values, spec.value_head_dim),
            )
            self._decode.write_kv(table, layer, 0, self._num_context, carried)
        continuation = self._token_ids[self._num_context :]
        span = Span(continuation, self._num_context, table, needs_logits=True, logits_from=self._num_context)
        if self._decode.num_state_slots:
            span = span._replace(state=StateSpan(0, 1))
        return self._decode.forward([span]).rows()

    def _through(self, data: bytes | memoryview, wire: KvDtype, head_dim: int) -> bytes | memoryview:
        cache = self._prefill.info.layout.dtype
        if wire is cache:
            return data
        packed = self._prefill.wire_codec.pack(data, cache, wire, head_dim)
        return self._decode.wire_codec.unpack(packed, cache, wire, head_dim)

    def _table(self, runner: Runner) -> list[int]:
        return list(range(-(-len(self._token_ids) // runner.block_tokens)))
