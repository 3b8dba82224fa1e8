"""Measures by MLX: the Apple GPU, else the CPU."""

from __future__ import annotations

import platform

import mlx.core as mx

from baton.engine.runners.yardstick import Work

_DTYPES = {"float32": mx.float32, "float16": mx.float16, "bfloat16": mx.bfloat16}


class MlxYardstick:
    """See `baton.engine.runners.yardstick.Yardstick`."""

    engine = "mlx"

    def __init__(self) -> None:
        is_gpu = mx.default_device().type == mx.DeviceType.gpu
        self.device = f"{'gpu' if is_gpu else 'cpu'}: {platform.processor() or platform.machine()}"
        self.dtypes = tuple(_DTYPES) if is_gpu else ("float32",)

    def product(self, dtype: str, size: int) -> Work:
        """Return the product of two square matrices, 2 · size³ operations."""
        left, right = (mx.random.normal((size, size)).astype(_DTYPES[dtype]) for _ in range(2))
        mx.eval(left, right)
        return lambda: mx.eval(left @ right)

    def read(self, num_bytes: int) -> Work:
        """Return a sum over a buffer."""
        buffer = mx.ones((num_bytes // 4,), dtype=mx.float32)
        mx.eval(buffer)
        return lambda: mx.eval(buffer.sum())

    def copy(self, num_bytes: int) -> Work:
        """Return a copy of a buffer: twice its bytes pass."""
        source = mx.ones((num_bytes // 4,), dtype=mx.float32)
        mx.eval(source)
        return lambda: mx.eval(source + 0.0)

    def memory(self) -> tuple[int, int] | None:
        """Return None: on Apple machines the GPU shares the machine's memory."""
        return None
