"""Makes the runner that the settings ask for. Frameworks are imported here only when they are wanted."""

from __future__ import annotations

import logging

from baton.config.cores import usable_cores
from baton.engine.pool_size import PoolBounds
from baton.engine.runners.base import Runner
from baton.errors import ConfigurationError
from baton.worker.computing import Computing, choose_computing
from baton.worker.settings import WorkerSettings

log = logging.getLogger(__name__)


def load_runner(settings: WorkerSettings) -> Runner:
    """Load the model.

    Raises:
        ConfigurationError: If the folder holds no model that the engine can run.
        ImportError: If the framework is not installed; the message names the extra.
    """
    _check_engine_has(settings)
    chosen = choose_computing(settings, usable_cores())
    log.info("computing_chosen threads=%d threads_cause=%r dtype=%s dtype_cause=%r", *chosen)
    if settings.engine == "mock":
        from baton.engine.runners.mock import load_mock_runner

        return load_mock_runner(
            settings.model_dir,
            model_id=settings.served_name,
            num_blocks=_num_blocks(settings),
            block_tokens=settings.block_tokens,
            dtype=chosen.dtype,
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
            dtype=chosen.dtype,
            num_blocks=_num_blocks(settings),
            block_tokens=settings.block_tokens,
            bounds=PoolBounds(settings.device_memory_share, settings.max_batch_size, settings.max_step_tokens),
            is_kv_quantized=settings.kv_quantization == "8",
            adapters=settings.adapter_folders,
        )
    return _load_torch_runner(settings, chosen)


def _load_torch_runner(settings: WorkerSettings, chosen: Computing) -> Runner:
    from baton.engine.runners.torch import LoadOptions, load_alone, load_parallel_runner

    options = LoadOptions(
        settings.model_dir,
        settings.served_name,
        _num_blocks(settings),
        dtype=chosen.dtype,
        device=settings.device,
        block_tokens=settings.block_tokens,
        num_threads=chosen.num_threads,
        model_code=settings.model_code,
        max_batch_size=settings.max_batch_size,
        max_step_tokens=settings.max_step_tokens,
        memory_share=settings.device_memory_share,
        weight_dtype=settings.weight_dtype,
        adapters=settings.adapter_folders,
    )
    if settings.tensor_parallel > 1:
        return load_parallel_runner(options, settings.tensor_parallel)
    return load_alone(options)


def _num_blocks(settings: WorkerSettings) -> int | None:
    """Return the blocks that are asked for; None: as many as memory leaves room for."""
    return None if settings.num_blocks == "auto" else settings.num_blocks


def _check_engine_has(settings: WorkerSettings) -> None:
    """Refuse what the engine would ignore."""
    if settings.kv_quantization != "none" and settings.engine != "mlx":
        cause = f"engine {settings.engine} keeps K and V as they are; only mlx quantizes them"
        raise ConfigurationError(f"kv_quantization {settings.kv_quantization}: {cause}")
    if settings.lora and settings.engine == "mock":
        raise ConfigurationError(f"lora {settings.lora}: engine {settings.engine} computes no adapters")
    if settings.engine == "torch":
        return
    if settings.tensor_parallel > 1:
        cause = f"engine {settings.engine} runs on one device; only torch shares layers out"
        raise ConfigurationError(f"tensor_parallel {settings.tensor_parallel}: {cause}")
    if settings.weight_dtype != "auto":
        cause = f"engine {settings.engine} computes with weights as they are; only torch rounds them"
        raise ConfigurationError(f"weight_dtype {settings.weight_dtype}: {cause}")
