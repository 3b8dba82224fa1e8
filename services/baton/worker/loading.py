"""Makes the runner that the settings ask for. Frameworks are imported here only when they are wanted."""

from __future__ import annotations

from baton.engine.runners.base import Runner
from baton.worker.settings import WorkerSettings


def load_runner(settings: WorkerSettings) -> Runner:
    """Load the model.

    Raises:
        ConfigurationError: If the folder holds no model that the engine can run.
        ImportError: If the framework is not installed; the message names the extra.
    """
    if settings.engine == "mock":
        from baton.engine.runners.mock import load_mock_runner

        return load_mock_runner(
            settings.model_dir,
            model_id=settings.served_name,
            num_blocks=settings.num_blocks,
            block_tokens=settings.block_tokens,
            dtype=settings.dtype,
            hardware=settings.mock_hardware,
            shape=settings.mock_shape,
            time_model=settings.mock_time_model,
            fixed_step_seconds=settings.mock_step_seconds,
        )
    if settings.engine == "mlx":
        from baton.engine.runners.mlx import load_mlx_runner

        return load_mlx_runner(
            settings.model_dir,
            model_id=settings.served_name,
            dtype=settings.dtype,
            num_blocks=settings.num_blocks,
            block_tokens=settings.block_tokens,
        )
    from baton.engine.runners.torch import load_torch_runner

    return load_torch_runner(
        settings.model_dir,
        model_id=settings.served_name,
        dtype=settings.dtype,
        device=settings.device,
        num_blocks=settings.num_blocks,
        block_tokens=settings.block_tokens,
        num_threads=settings.engine_threads,
        model_code=settings.model_code,
        max_batch_size=settings.max_batch_size,
    )
