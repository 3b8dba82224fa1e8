"""Makes a mock of a model on a device."""

from __future__ import annotations

from dataclasses import replace
from hashlib import blake2b
from pathlib import Path

from baton.capacity.cost import ModelShape
from baton.capacity.hardware import PRESETS
from baton.capacity.reference_models import REFERENCE_MODELS
from baton.config.container_limits import usable_memory
from baton.engine.checkpoint.model_folder import read_checkpoint
from baton.engine.kv_cache import pool_size
from baton.engine.runners.base import ModelInfo
from baton.engine.runners.mock.runner import MockRunner
from baton.engine.runners.mock.state import state_bytes, words_per_row
from baton.errors import ConfigurationError
from baton.kv.kv_format import KvDtype, LayerSpec


def load_mock_runner(
    directory: Path,
    *,
    model_id: str,
    num_blocks: int | None,
    block_tokens: int = 16,
    dtype: str = "bfloat16",
    hardware: str = "m3-ultra",
    shape: str = "",
    fixed_step_seconds: float | None = None,
    time_scale: float = 1.0,
    bounds: pool_size.PoolBounds = pool_size.DEFAULT_BOUNDS,
    most_kv_bytes: int = 0,
) -> MockRunner:
    """Return a mock of a model, of a folder's tokenizer and vocabulary, on a preset of `baton.capacity.hardware`.

    `shape` names sizes of `baton.capacity.reference_models`; empty: the folder's own. `fixed_step_seconds` is the time
    of every step instead, and `time_scale` what every time is multiplied by. `most_kv_bytes` are K and V that the node
    can hold of one prompt on its way out, where it chooses `num_blocks`: a mock keeps none, but makes them; 0: any.
    Raises ConfigurationError if a name is unknown; the message lists the known ones.
    """
    if hardware not in PRESETS:
        raise ConfigurationError(f"hardware: {hardware!r} is unknown; expected one of {', '.join(PRESETS)}")
    if shape and shape not in REFERENCE_MODELS:
        raise ConfigurationError(f"mock_shape: {shape!r} is unknown; expected one of {', '.join(REFERENCE_MODELS)}")
    checkpoint = read_checkpoint(directory)
    info = checkpoint.model_info(model_id, KvDtype(dtype), engine="mock", device=f"mock {hardware}")
    if shape:
        info = _resized(info, REFERENCE_MODELS[shape])
    digest = blake2b(f"mock/{shape}/{info.layout.model_revision_digest}".encode(), digest_size=16).hexdigest()
    info = replace(info, layout=replace(info.layout, model_revision_digest=digest))
    for spec in info.layout.layers:
        words_per_row(spec.key_head_dim, info.layout.dtype)
    chosen = _choose_pool_size(num_blocks, info, block_tokens, bounds, most_kv_bytes)
    runner = MockRunner(
        info,
        PRESETS[hardware].slowed(time_scale),
        num_blocks=chosen.num_blocks,
        block_tokens=block_tokens,
        fixed_step_seconds=None if fixed_step_seconds is None else fixed_step_seconds * time_scale,
    )
    runner.num_blocks_cause = chosen.cause
    return runner


def _choose_pool_size(
    num_blocks: int | None, info: ModelInfo, block_tokens: int, bounds: pool_size.PoolBounds, most_kv_bytes: int
) -> pool_size.PoolSize:
    """Return the blocks of a mock, which keeps a state for each position instead of K and V."""
    memory = usable_memory()
    device = pool_size.DeviceMemory("main memory", memory.total_bytes, 0, memory.free_bytes, is_main=True)
    model = pool_size.PoolModel(info.shape, block_tokens, block_tokens * state_bytes(info.layout.num_layers))
    kv_bytes = block_tokens * info.layout.num_token_bytes()
    planned_bytes = -(-bounds.planned_bytes // kv_bytes) * model.block_bytes
    chosen = pool_size.choose_pool_size(num_blocks, device, model, replace(bounds, planned_bytes=planned_bytes))
    num_sendable = most_kv_bytes // kv_bytes
    if num_blocks is None and most_kv_bytes and num_sendable < chosen.num_blocks:
        cause = f"the K and V of one prompt on its way out have {most_kv_bytes / 1e9:.3g} GB"
        return pool_size.PoolSize(max(1, num_sendable), cause)
    return chosen


def _resized(info: ModelInfo, shape: ModelShape) -> ModelInfo:
    """Return `info` with another model's sizes; dtype, tokenizer and vocabulary stay."""
    layer = LayerSpec(shape.num_kv_heads, shape.head_dim, shape.head_dim)
    return replace(
        info,
        layout=replace(info.layout, layers=(layer,) * shape.num_layers),
        num_linear_parameters=shape.num_linear_parameters,
        num_head_parameters=shape.num_head_parameters,
        num_attention_heads=shape.num_attention_heads,
        head_dim=shape.head_dim,
        attention_elements=shape.attention_elements,
        weight_bytes=(shape.num_linear_parameters + shape.num_head_parameters) * info.layout.dtype.num_bytes,
        max_context_tokens=shape.max_context_tokens,
    )
