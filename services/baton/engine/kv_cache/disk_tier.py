"""Blocks on disk, as the engine sees them: K and V by layer, and answers in its own thread."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from baton.engine.runners.base import BlockKv, LayerKv
from baton.kv.disk_store import DiskBlockStore
from baton.kv.hashing import BlockHash
from baton.kv.kv_format import KvLayout


class DiskTier:
    """Blocks in a store on disk. `call` runs a function in the engine's thread, between two passes."""

    def __init__(
        self, store: DiskBlockStore, layout: KvLayout, block_tokens: int, call: Callable[[Callable[[], None]], None]
    ) -> None:
        self.store, self.call = store, call
        self._half_bytes = [
            spec.num_kv_heads * head_dim * block_tokens * layout.dtype.num_bytes
            for spec in layout.layers
            for head_dim in (spec.key_head_dim, spec.value_head_dim)
        ]

    def put(self, block_hash: BlockHash, contents: BlockKv) -> None:
        """Let a block be written."""
        self.store.put(block_hash, [half for layer in contents for half in layer])

    def read(self, hashes: Sequence[BlockHash], on_read: Callable[[list[BlockKv]], None]) -> None:
        """Read blocks, and hand over in the engine's thread the contents of those before the first that fails."""

        def deliver(payloads: list[memoryview]) -> None:
            self.call(lambda: on_read([self._split(payload) for payload in payloads]))

        self.store.read(hashes, deliver)

    def _split(self, payload: memoryview) -> BlockKv:
        halves, start = list[memoryview](), 0
        for num_bytes in self._half_bytes:
            halves.append(payload[start : start + num_bytes])
            start += num_bytes
        return tuple(LayerKv(keys, values) for keys, values in zip(halves[::2], halves[1::2], strict=True))
