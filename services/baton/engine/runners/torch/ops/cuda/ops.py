"""Operations by Triton kernels; and what CUDA does besides: pinned copies, streams, captured steps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial

import torch

from baton.engine.checkpoint.weights import PackedRows
from baton.engine.runners.torch.batch import RowBatch, hand_over
from baton.engine.runners.torch.ops.cuda import elementwise
from baton.engine.runners.torch.ops.cuda.copy_stream import CudaCopyStream, KvCopies
from baton.engine.runners.torch.ops.cuda.drawing import draw
from baton.engine.runners.torch.ops.cuda.packed_linear import QuantLinear, embedded
from baton.engine.runners.torch.ops.cuda.packed_weight import (
    PackedWeight,
    can_hold,
    joined,
    packed_weight,
    rounded_weight,
)
from baton.engine.runners.torch.ops.cuda.paged_attention import attend_by_kernel
from baton.engine.runners.torch.ops.device_ops import DeviceOps, HeadNorms, HostCopy, Norm, Rotation
from baton.engine.runners.torch.ops.eager.linear import PACKED, Linear, Projection, biases_of
from baton.engine.runners.torch.ops.eager.quantised import RoundedWeight


class TritonOps(DeviceOps):
    """Operations by Triton kernels; on a CPU only under TRITON_INTERPRET=1."""

    rounds_packed = True
    attends_in_blocks = True
    attend_blocks = staticmethod(attend_by_kernel)
    _embedded: tuple[object, PackedWeight] | None = None

    def add_and_normalise(
        self, hidden: torch.Tensor, delta: torch.Tensor, norm: Norm
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """See `DeviceOps`."""
        return elementwise.add_and_normalise(hidden, delta, *norm)

    def gate(self, gate_up: torch.Tensor) -> torch.Tensor:
        """See `DeviceOps`."""
        return elementwise.gate(gate_up)

    def rotate_and_store(
        self, heads: torch.Tensor, rotation: Rotation, norms: HeadNorms | None, batch: RowBatch, layer: int
    ) -> torch.Tensor:
        """See `DeviceOps`."""
        pool = batch.pool.layer(layer)
        queries, written = elementwise.rotate_and_store(
            heads, *rotation, norms, batch.slots(), pool, is_copied=batch.has_sinks
        )
        if written is not None:
            hand_over(batch, layer, written)
        return queries.transpose(0, 1)

    def embedding(self, module: torch.nn.Embedding) -> Projection:
        """See `DeviceOps`."""
        if not hasattr(module, PACKED):
            return super().embedding(module)
        weight = self._packed(module)
        self._embedded = (getattr(module, PACKED), weight)
        return partial(embedded, weight=weight, dtype=module.weight.dtype)

    def can_hold(self, packed: PackedRows) -> bool:
        """See `DeviceOps`."""
        return can_hold(packed)

    def _hold_packed(self, modules: Sequence[torch.nn.Linear]) -> Linear:
        weight = joined([self._packed(module) for module in modules])
        return QuantLinear(weight, biases_of(modules), modules[0].weight.dtype)

    def _packed(self, module: torch.nn.Module) -> PackedWeight:
        """Return a module's weight on the device; that of a tied embedding is there already."""
        held = getattr(module, PACKED)
        if self._embedded is not None and held is self._embedded[0]:
            return self._embedded[1]
        return rounded_weight(held) if isinstance(held, RoundedWeight) else packed_weight(held.packed, self.device)

    def drawn(self, logits: torch.Tensor, temperatures: torch.Tensor, uniforms: torch.Tensor) -> torch.Tensor:
        """See `DeviceOps`."""
        return draw(logits, temperatures, uniforms)


class CudaOps(TritonOps):
    """Operations of a GPU, which the host does not wait for; float32 is multiplied as such in the whole process."""

    can_capture = True

    def __init__(self, device: torch.device) -> None:
        super().__init__(device)
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False  # else positions lose 13 bits

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """See `DeviceOps`."""
        with torch.inference_mode(), torch.cuda.device(self.device):
            yield

    def kv_copies(self) -> KvCopies:
        """Return what copies K and V beside what is computed."""
        return KvCopies(CudaCopyStream(self.device))

    def begin_copy(self, tensor: torch.Tensor) -> HostCopy:
        """See `DeviceOps`; into pinned memory, behind what the current stream was asked for."""
        host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
        host.copy_(tensor, non_blocking=True)
        arrival = torch.cuda.Event()
        arrival.record()
        return HostCopy(host, arrival)

    def peak_bytes(self) -> int:
        """Return the most memory of the device that tensors have had."""
        return int(torch.cuda.max_memory_allocated(self.device))

    def release(self) -> None:
        """Give back what torch keeps for tensors to come."""
        torch.cuda.empty_cache()
