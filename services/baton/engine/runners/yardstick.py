"""What every framework can be measured by, without a model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

Work = Callable[[], object]
"""Does one run, and returns when the device has done it."""


class Yardstick(Protocol):
    """Prepares runs on one device."""

    engine: str
    device: str

    @property
    def dtypes(self) -> Sequence[str]:
        """Return the number formats of products."""

    def product(self, dtype: str, size: int) -> Work:
        """Return the product of two square matrices, 2 · size³ operations."""

    def read(self, num_bytes: int) -> Work:
        """Return a sum over a buffer."""

    def copy(self, num_bytes: int) -> Work:
        """Return a copy of a buffer: twice its bytes pass."""

    def memory(self) -> tuple[int, int] | None:
        """Return all and free bytes of the device's own memory; None: it has none, or shares the machine's."""
