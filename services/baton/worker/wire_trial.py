"""What a model makes of a context whose KV has been through a wire format, as after a remote prefill."""

from __future__ import annotations

from collections.abc import Sequence

from baton.engine.runners.base import Array, LayerKv, Runner, Span
from baton.kv.layout import KvDtype, WireFormat


class WireTrial:
    """A context, computed once by one runner, from which another goes on with the KV of any format.

    Uses the first blocks of both runners, to which nothing else may refer.

    Args:
        prefill: Computes the context and packs its KV.
        decode: Unpacks it and computes the continuation; may be the same.
        token_ids: Context and continuation.
        num_context_tokens: Length of the context, 1 to len(token_ids) - 1.
    """

    def __init__(self, prefill: Runner, decode: Runner, token_ids: Sequence[int], num_context_tokens: int) -> None:
        self._prefill, self._decode = prefill, decode
        self._token_ids = list(token_ids)
        self._num_context = num_context_tokens
        context = self._token_ids[:num_context_tokens]
        table = self._table(prefill)
        prefill.forward([Span(context, 0, table, needs_logits=True)]).argmax()
        layers = range(prefill.info.layout.num_layers)
        self._context = [prefill.read_kv(table, layer, 0, num_context_tokens) for layer in layers]

    def logits(self, wire: WireFormat) -> Array:
        """Return the logits after every token of the continuation: [num_tokens, vocabulary_size], float32."""
        table = self._table(self._decode)
        for layer, kv in enumerate(self._context):
            self._decode.write_kv(table, layer, 0, self._num_context, self._carried(layer, kv, wire))
        continuation = self._token_ids[self._num_context :]
        span = Span(continuation, self._num_context, table, needs_logits=True, logits_from=self._num_context)
        return self._decode.forward([span]).rows()

    def _carried(self, layer: int, kv: LayerKv, wire: WireFormat) -> LayerKv:
        spec = self._prefill.info.layout.layers[layer]
        return LayerKv(
            self._through(kv.keys, wire.keys, spec.key_head_dim),
            self._through(kv.values, wire.values, spec.value_head_dim),
        )

    def _through(self, data: bytes | memoryview, wire: KvDtype, head_dim: int) -> bytes | memoryview:
        cache = self._prefill.info.layout.dtype
        if wire is cache:
            return data
        packed = self._prefill.wire_codec.pack(data, cache, wire, head_dim)
        return self._decode.wire_codec.unpack(packed, cache, wire, head_dim)

    def _table(self, runner: Runner) -> list[int]:
        return list(range(-(-len(self._token_ids) // runner.block_tokens)))
