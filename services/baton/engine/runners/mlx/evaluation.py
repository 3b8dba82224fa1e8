"""Sets lazy arrays going."""

from __future__ import annotations

import mlx.core as mx


def begin(*arrays: object) -> None:
    """Let the device compute arrays, in lists or not, and return meanwhile; MLX's stub of it has no types."""
    mx.async_eval(*arrays)  # type: ignore[no-untyped-call]
