"""Hands each layer's K and V to those who send them on, without the computing stream ever waiting for a copy.

A copy begins on a stream of its own as soon as the layer's K and V exist, into pinned memory that torch lends and takes
back when the last reference to it is gone: what leaves here is the sink's to keep, and nothing is copied twice.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

import torch

from baton.engine.runners.base import LayerKv, LayerSink
from baton.engine.runners.torch.ops.pool import KeysValues


class _Pending(NamedTuple):
    sink: LayerSink
    layer: int
    copy: CudaCopy


class KvCopies:
    """Calls sinks in the order of their layers, each when its copy has arrived.

    Used by the engine's thread alone: `poll` whenever it passes by, `drain` before a pass is called done.
    """

    def __init__(self, stream: CudaCopyStream) -> None:
        self._stream = stream
        self._pending: deque[_Pending] = deque()

    def begin(self, kv: KeysValues) -> CudaCopy:
        """Begin to copy K and V that nobody changes, for who calls this."""
        return self._stream.begin(kv)

    def add(self, sink: LayerSink, layer: int, kv: KeysValues) -> None:
        """Begin to copy a layer for a sink, and call those whose copies have arrived meanwhile."""
        self._pending.append(_Pending(sink, layer, self._stream.begin(kv)))
        self.poll()

    def poll(self) -> None:
        """Call the sinks whose copies have arrived; never waits."""
        while self._pending and self._pending[0].copy.is_done():
            self._hand_out()

    def drain(self) -> None:
        """Call all sinks, waiting for the copies that are still under way."""
        while self._pending:
            self._hand_out()

    def clear(self) -> None:
        """Drop what has not been handed out: the pass has failed."""
        self._pending.clear()

    def _hand_out(self) -> None:
        pending = self._pending.popleft()
        pending.sink(pending.layer, pending.copy.wait())


class CudaCopyStream:
    """Copies on a CUDA stream beside the current one."""

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device)

    def begin(self, kv: KeysValues) -> CudaCopy:
        """Begin to copy what everything asked of the computing stream so far has written; it may be dropped at once."""
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            keys, values = (_to_pinned(tensor) for tensor in kv)
            arrived = torch.cuda.Event()
            arrived.record()
        for tensor in kv:
            tensor.record_stream(self._stream)  # else its memory would be given out again before it is copied
        return CudaCopy(KeysValues(keys, values), arrived)


class CudaCopy:
    """K and V on their way to the host."""

    def __init__(self, host: KeysValues, arrived: torch.cuda.Event) -> None:
        self._host, self._arrived = host, arrived

    def is_done(self) -> bool:
        """Return whether both tensors have arrived; never waits."""
        return bool(self._arrived.query())

    def wait(self) -> LayerKv:
        """Return their bytes, which keep the memory; wait if they have not arrived. From any thread."""
        with torch.cuda.device(self._arrived.device):  # a thread's own first call would take memory of device 0
            self._arrived.synchronize()
        keys, values = (memoryview(tensor.view(-1).view(torch.uint8).numpy()) for tensor in self._host)
        return LayerKv(keys, values)


def _to_pinned(tensor: torch.Tensor) -> torch.Tensor:
    host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    return host.copy_(tensor.contiguous(), non_blocking=True)
