"""Measures by PyTorch: the first CUDA device, else the CPU."""

from __future__ import annotations

import platform

import torch

from baton.engine.runners.yardstick import Work

_DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


class TorchYardstick:
    """See `baton.engine.runners.yardstick.Yardstick`."""

    engine = "torch"

    def __init__(self) -> None:
        self._device = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
        is_cuda = self._device.type == "cuda"
        self.device = torch.cuda.get_device_name(0) if is_cuda else f"cpu: {platform.machine()}"
        # A CPU without arithmetic in 16 bits takes minutes for a product in float16.
        self.dtypes = tuple(_DTYPES) if is_cuda else ("float32", "bfloat16")

    def product(self, dtype: str, size: int) -> Work:
        """Return the product of two square matrices, 2 · size³ operations."""
        left, right = (torch.randn(size, size, device=self._device).to(_DTYPES[dtype]) for _ in range(2))
        return self._finished(lambda: left @ right)

    def read(self, num_bytes: int) -> Work:
        """Return a sum over a buffer."""
        buffer = torch.ones(num_bytes // 4, dtype=torch.float32, device=self._device)
        return self._finished(buffer.sum)

    def copy(self, num_bytes: int) -> Work:
        """Return a copy of a buffer: twice its bytes pass."""
        source = torch.ones(num_bytes // 4, dtype=torch.float32, device=self._device)
        target = torch.empty_like(source)
        return self._finished(lambda: target.copy_(source))

    def memory(self) -> tuple[int, int] | None:
        """Return all and free bytes of the device's own memory; None on a CPU."""
        if self._device.type != "cuda":
            return None
        free, total = torch.cuda.mem_get_info(self._device)
        return total, free

    def _finished(self, work: Work) -> Work:
        def run() -> None:
            work()
            if self._device.type == "cuda":
                torch.cuda.synchronize(self._device)

        return run
