"""Runs mlx-lm's models over paged KV: Apple GPUs, and Linux CPUs for tests.

`loader` makes a model, whose `modules` are partly Baton's own; `runner` has `forward_pass` plan and compute batches of
spans, whose K and V `kv_cache` holds in blocks, and in rows while they decode.
"""

from __future__ import annotations

from baton.errors import ConfigurationError
from baton.installation import install_line

try:
    import mlx.core  # noqa: F401 (imported only to name the extra where it is missing)
    import mlx_lm  # noqa: F401
except ImportError as error:
    raise ConfigurationError(f"the mlx engine needs mlx and mlx-lm: {install_line('mlx')}") from error

from baton.engine.runners.mlx.runner import MlxRunner, load_mlx_runner

__all__ = ["MlxRunner", "load_mlx_runner"]
