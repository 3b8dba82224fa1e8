"""KV that enters and leaves an engine's blocks outside a pass."""

from __future__ import annotations

from collections.abc import Iterator

from baton.engine.runners.base import LayerKv, Runner
from baton.engine.sequence import Sequence
from baton.kv.stream import KvFrame

EXPORT_TOKENS = 512
"""Cached positions handed out at once, so that no frame grows with the prompt."""


def write_frame(runner: Runner, sequence: Sequence, frame: KvFrame) -> None:
    """Write a received frame into the blocks of a sequence."""
    for layer, kv in _layers_of(frame):
        runner.write_kv(sequence.block_table, layer, frame.token_begin, frame.num_tokens, kv)


def export_cached(runner: Runner, sequence: Sequence) -> None:
    """Hand out the KV that is in the prefix cache and that the caller lacks: [kv_token_begin, num_computed)."""
    request = sequence.request
    if request.export is None or request.kv_token_begin >= sequence.num_computed:
        return
    for start in range(request.kv_token_begin, sequence.num_computed, EXPORT_TOKENS):
        num_tokens = min(EXPORT_TOKENS, sequence.num_computed - start)
        for layer in range(runner.info.layout.num_layers):
            request.export(start, layer, runner.read_kv(sequence.block_table, layer, start, num_tokens))


def _layers_of(frame: KvFrame) -> Iterator[tuple[int, LayerKv]]:
    """Yield each layer of a frame with its share of the bytes."""
    key_bytes, value_bytes = len(frame.keys) // frame.num_layers, len(frame.values) // frame.num_layers
    keys, values = memoryview(frame.keys), memoryview(frame.values)
    for index in range(frame.num_layers):
        key_start, value_start = index * key_bytes, index * value_bytes
        yield (
            frame.layer_begin + index,
            LayerKv(keys[key_start : key_start + key_bytes], values[value_start : value_start + value_bytes]),
        )
