"""The runner contract on torch."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch

from baton.engine.runners.base import LayerKv, ModelInfo, Runner, Span
from baton.engine.runners.torch.backbone import Backbone
from baton.engine.runners.torch.batch import Followed, PackedBatch
from baton.engine.runners.torch.kv_codec import TorchCodec
from baton.engine.runners.torch.ops.cuda.copy_stream import CudaCopyStream, KvCopies
from baton.engine.runners.torch.pool import KvPool
from baton.engine.runners.torch.sampling import TorchLogits


class TorchRunner(Runner):
    """Runs a model over spans whose KV lives in a pool of blocks.

    Sequences in a pass are laid end to end in one row of tokens: no padding.
    """

    wire_codec = TorchCodec()

    def __init__(
        self,
        model: Backbone,
        info: ModelInfo,
        *,
        num_blocks: int,
        block_tokens: int,
        device: torch.device,
        num_idle_blocks: int = 0,
    ) -> None:
        """Take over a model.

        Args:
            model: The model on `device`.
            info: Its description.
            num_blocks: Blocks in the pool, 1 or more.
            block_tokens: Tokens of one block, 1 or more.
            device: Where model and pool live.
            num_idle_blocks: Blocks behind those that rows without a sequence may write to.
        """
        self.info = info
        self.num_blocks = num_blocks
        self.block_tokens = block_tokens
        self.device = device
        self._model: Backbone | None = model
        self._hand_over = KvCopies(CudaCopyStream(device)) if device.type == "cuda" else None
        dtype = getattr(torch, info.layout.dtype.value)
        self._pool = KvPool(
            info.layout.layers,
            num_blocks=num_blocks + num_idle_blocks,
            block_tokens=block_tokens,
            dtype=dtype,
            device=device,
        )

    def forward(self, spans: Sequence[Span]) -> TorchLogits:
        """Compute spans of different sequences in one pass and write their KV into their blocks."""
        with self._at_work():
            logits = self._packed_logits(spans)
            if self._hand_over is not None:
                self._hand_over.drain()
            return TorchLogits(logits)

    @contextmanager
    def _at_work(self) -> Iterator[None]:
        """Compute without gradients, on this runner's device: which one is current, every thread decides for itself."""
        with torch.inference_mode():
            if self.device.type == "cuda":
                with torch.cuda.device(self.device):
                    yield
            else:
                yield

    def _packed_logits(self, spans: Sequence[Span], followed: Followed | None = None) -> torch.Tensor:
        """Compute spans; what they hand over may still be on its way."""
        assert self._model is not None, "the runner is closed"
        try:
            return self._model.logits(PackedBatch(spans, self._pool, self.device, followed, self._hand_over))
        except BaseException:
            if self._hand_over is not None:
                self._hand_over.clear()
            raise

    def write_kv(self, block_table: Sequence[int], layer: int, start: int, num_tokens: int, kv: LayerKv) -> None:
        """Write K and V of positions [start, start + num_tokens) of one layer, in the cache's dtype, into blocks.

        Raises:
            ValueError: If the buffers do not have the size of these positions.
        """
        with self._at_work():
            table = self._pool.table(block_table, start + num_tokens)
            self._pool.write(table, layer, start, self._pool.from_layer_kv(layer, num_tokens, kv))

    def read_kv(self, block_table: Sequence[int], layer: int, start: int, num_tokens: int) -> LayerKv:
        """Return K and V of positions [start, start + num_tokens) of one layer."""
        with self._at_work():
            table = self._pool.table(block_table, start + num_tokens)
            return self._pool.read(table, layer, start, start + num_tokens).to_layer_kv()

    def peak_device_bytes(self) -> int:
        """Return the most memory of the CUDA device that tensors have had; 0 on the CPU."""
        return torch.cuda.max_memory_allocated(self.device) if self.device.type == "cuda" else 0

    def copy_block(self, source: int, target: int) -> None:
        """Copy K and V of all layers from one block into another."""
        with self._at_work():
            self._pool.copy_block(source, target)

    def close(self) -> None:
        """Free the model and the blocks; the runner cannot be used afterwards. May be called again."""
        self._model = None
        self._pool.clear()
        gc.collect()  # the last layer and its replaced forward refer to each other
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
