"""Measures by NumPy, for machines that have no framework."""

from __future__ import annotations

import platform

import numpy as np

from baton.engine.runners.yardstick import Work


class NumpyYardstick:
    """See `baton.engine.runners.yardstick.Yardstick`."""

    engine = "numpy"
    device = f"cpu: {platform.machine()}"
    dtypes = ("float32",)

    def product(self, dtype: str, size: int) -> Work:
        """Return the product of two square matrices, 2 · size³ operations."""
        generator = np.random.default_rng(0)
        left, right = (generator.standard_normal((size, size)).astype(dtype) for _ in range(2))
        target = np.empty_like(left)
        return lambda: np.matmul(left, right, out=target)

    def read(self, num_bytes: int) -> Work:
        """Return a sum over a buffer."""
        buffer = np.ones(num_bytes // 4, np.float32)
        return buffer.sum

    def copy(self, num_bytes: int) -> Work:
        """Return a copy of a buffer: twice its bytes pass."""
        source = np.ones(num_bytes // 4, np.float32)
        target = np.empty_like(source)
        return lambda: np.copyto(target, source)

    def memory(self) -> tuple[int, int] | None:
        """Return None: it computes in the machine's memory."""
        return None
