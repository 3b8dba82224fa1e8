"""Makes what settings ask for: the runner, in threads and a number format that fit the machine, and the disk's blocks.

Frameworks are imported here only when they are wanted.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Literal, NamedTuple

from baton.config.container_limits import Cores, machine_memory, usable_cores, usable_memory
from baton.engine.kv_cache.pool_size import PoolBounds
from baton.engine.runners.base import Runner
from baton.errors import ConfigurationError
from baton.kv.block_file import cache_identity
from baton.kv.disk_store import DiskBlockStore
from baton.node.memory import LONE_PROMPT, pool_bounds, shares_of
from baton.node.settings import NodeSettings

log = logging.getLogger(__name__)
CPU_INFO = Path("/proc/cpuinfo")
_MATRIX_UNIT = "amx_bf16"


class Computing(NamedTuple):
    """How an engine computes."""

    num_threads: int
    """CPU threads."""
    threads_cause: str
    """Why so many, and where they run."""
    dtype: Literal["float32", "float16", "bfloat16"]
    dtype_cause: str


def load_runner(settings: NodeSettings) -> Runner:
    """Load the model; raise ConfigurationError if the engine cannot run it, or how to install what lacks."""
    check_engine_has(settings)
    chosen = choose_computing(settings, usable_cores())
    log.info("computing_chosen threads=%d threads_cause=%r dtype=%s dtype_cause=%r", *chosen)
    bounds = pool_bounds(settings)
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
            fixed_step_seconds=settings.mock_step_seconds,
            time_scale=settings.mock_time_scale,
            bounds=bounds,
            most_kv_bytes=_most_kv_bytes(settings),
        )
    if settings.engine == "mlx":
        from baton.engine.runners.mlx import load_mlx_runner

        return load_mlx_runner(
            settings.model_dir,
            model_id=settings.served_name,
            dtype=chosen.dtype,
            num_blocks=_num_blocks(settings),
            block_tokens=settings.block_tokens,
            bounds=bounds,
            is_kv_quantized=settings.kv_quantization == "8",
            adapters=settings.adapter_folders,
        )
    return _load_torch_runner(settings, chosen, bounds)


def choose_computing(settings: NodeSettings, cores: Cores, cpu_info: Path = CPU_INFO) -> Computing:
    """Return threads and number format: those of the settings, or else those that suit the machine."""
    threads_cause = "num_threads says so"
    if not settings.num_threads:
        left = "one left to the event loop and the network" if cores.num_cores > 1 else "none left over"
        threads_cause = f"cores: {cores.cause}; {left}"
    num_threads = settings.num_threads or max(1, cores.num_cores - 1)
    where = "not pinned: they stay where the affinity of the process lets the system move them"
    dtype, dtype_cause = settings.dtype, "dtype says so"
    if dtype == "auto":
        dtype, dtype_cause = _choose_dtype(settings, cpu_info)
    return Computing(num_threads, f"{threads_cause}; {where}", dtype, dtype_cause)


def open_disk(settings: NodeSettings, runner: Runner) -> DiskBlockStore | None:
    """Return the blocks on disk, which may be none yet, or None if the settings name no folder.

    A folder that cannot be used is no reason not to serve: its store is off, and the log says why.
    """
    if not settings.disk_kv_dir:
        return None
    variant = f"{settings.engine}/{settings.weight_dtype}/{settings.kv_quantization}"
    identity = cache_identity(runner.info.layout, runner.block_tokens, variant)
    store = DiskBlockStore(Path(settings.disk_kv_dir), settings.disk_kv_bytes, identity)
    store.start()
    return store


def _load_torch_runner(settings: NodeSettings, chosen: Computing, bounds: PoolBounds) -> Runner:
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
        bounds=bounds,
        weight_dtype=settings.weight_dtype,
        adapters=settings.adapter_folders,
    )
    if settings.tensor_parallel > 1:
        return load_parallel_runner(options, settings.tensor_parallel)
    return load_alone(options)


def _most_kv_bytes(settings: NodeSettings) -> int:
    """Return the K and V that a node can hold of one prompt on its way out; 0: it sends none."""
    claims = settings.memory_claims()
    is_sender = any(claim.setting == "max_outbox_bytes" for claim in claims)
    return shares_of(claims, usable_memory(), machine_memory())[LONE_PROMPT] if is_sender else 0


def _num_blocks(settings: NodeSettings) -> int | None:
    """Return the blocks that are asked for; None: as many as memory leaves room for."""
    return None if settings.num_blocks == "auto" else settings.num_blocks


def check_engine_has(settings: NodeSettings) -> None:
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


def _choose_dtype(settings: NodeSettings, cpu_info: Path) -> tuple[Literal["float32", "bfloat16"], str]:
    if settings.engine == "mlx":
        return "bfloat16", "MLX computes it at full speed on Apple silicon"
    if settings.engine == "torch" and settings.device != "cpu":
        return "bfloat16", "GPUs multiply it many times as fast as float32"
    if _MATRIX_UNIT in (cpu_info.read_text(encoding="utf-8").split() if cpu_info.is_file() else ()):
        return "bfloat16", f"the processor has {_MATRIX_UNIT}"
    return "float32", f"the processor has no {_MATRIX_UNIT}"
