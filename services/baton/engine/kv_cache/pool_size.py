"""How many KV blocks a node has: as many as it is told, or as many as its memory leaves room for. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from baton.capacity.cost import ModelShape
from baton.config.memory_budget import told
from baton.errors import ConfigurationError

USUAL_BLOCKS = 2048
"""Blocks on a CPU, where several nodes may share a host, and of a mock."""
_CPU_PARTS = 4
"""On a CPU a pool gets one of so many parts of what is free."""
_STATE_PARTS, _LEAST_SLOTS = 4, 4
"""States of sequences get one of so many parts of what a pool may have, but at least so many slots."""
RESERVE_BYTES = 1 << 30
"""Left free on a GPU: its context and kernels, captured graphs, and freed memory that a framework keeps."""


@dataclass(frozen=True, slots=True)
class PoolBounds:
    """What settings say of the room that a pool may take where they name no number."""

    memory_share: float = 0.9
    """Share of a GPU's memory for all that the node has there, above 0, 1 or less; of no effect on a CPU."""
    max_batch_size: int = 64
    """Sequences that hold blocks at once."""
    max_step_tokens: int = 512
    beside_bytes: int = 0
    """Main memory that others of this process need, which no pool there may take."""
    beside_cause: str = ""
    """Who they are, in words."""
    planned_bytes: int = 0
    """What the pool takes if there is room, and no more; 0: nobody says."""


DEFAULT_BOUNDS = PoolBounds()


@dataclass(frozen=True, slots=True)
class PoolModel:
    """What blocks cost with the model whose K and V they hold."""

    shape: ModelShape
    block_tokens: int
    block_bytes: int
    """K and V of one block in all layers, as this process holds them."""
    row_bytes: int = 0
    """What the engine would like to have besides for each block: copies of K and V while they are decoded from."""


class DeviceMemory(NamedTuple):
    """Memory of a device whose model is loaded."""

    name: str
    total_bytes: int
    own_bytes: int
    """What this process's tensors have."""
    free_bytes: int
    """What it can still have."""
    is_main: bool
    """Whether it is the main memory of a CPU."""


class PoolSize(NamedTuple):
    """A choice."""

    num_blocks: int
    """Blocks, 1 or more."""
    cause: str
    """Why the pool has this size, in words."""
    num_state_slots: int = 0
    """Slots for states that layers keep of sequences."""


def pass_bytes(shape: ModelShape, bounds: PoolBounds) -> int:
    """Return about what the largest pass holds beside weights and KV.

    That of `ModelShape.workspace_bytes`; a row of logits for every position, whose log-probabilities a client may ask
    for, in two formats; and eight rows in float64 for each sequence of a batch: choosing a token by chance takes four,
    in packed passes and in captured ones.
    """
    logits = bounds.max_step_tokens * 8 + bounds.max_batch_size * 64
    return shape.workspace_bytes(bounds.max_step_tokens) + shape.vocabulary_size * logits


def choose_pool_size(
    num_blocks: int | None,
    memory: DeviceMemory,
    model: PoolModel,
    bounds: PoolBounds,
    *,
    least: Callable[[int], int] = lambda number: number,
) -> PoolSize:
    """Return how many blocks a node has.

    `least` returns the least of what every rank of a model gives; all call it equally often. Raises ConfigurationError
    if they do not fit, or nothing does; the message names num_blocks, and what would fit.
    """
    num_slots = _num_state_slots(memory, model.shape.state_bytes, bounds)
    taken_bytes = num_slots * model.shape.state_bytes
    own_bytes, free_bytes = memory.own_bytes + taken_bytes, max(0, memory.free_bytes - taken_bytes)
    memory = memory._replace(own_bytes=own_bytes, free_bytes=free_bytes)
    left_bytes = max(0, memory.free_bytes - bounds.beside_bytes) if memory.is_main else memory.free_bytes
    num_fitting = least(left_bytes // model.block_bytes)
    own = _automatic(memory, model, bounds)
    num_automatic = least(own.num_blocks)
    if num_blocks is not None:
        if num_blocks > num_fitting:
            beside = f" beside {bounds.beside_cause}" if left_bytes < memory.free_bytes else ""
            raise ConfigurationError(
                f"num_blocks {num_blocks}: {num_blocks * model.block_bytes} bytes do not fit into the"
                f" {left_bytes} that are left{beside} of {memory.name}; {num_fitting} would, auto takes {num_automatic}"
            )
        return PoolSize(num_blocks, "num_blocks says so", num_slots)
    if num_automatic < 1:
        raise ConfigurationError(
            f"num_blocks auto: {own.cause}: no room for a block of {model.block_bytes} bytes on {memory.name}"
        )
    if num_automatic < own.num_blocks:
        own = PoolSize(num_automatic, "another rank has room for no more")
    return own._replace(num_state_slots=num_slots)


def _num_state_slots(memory: DeviceMemory, state_bytes: int, bounds: PoolBounds) -> int:
    """Return how many states there is room for: two for each sequence of a batch, one of them a checkpoint's."""
    if not state_bytes:
        return 0
    parts = _CPU_PARTS * _STATE_PARTS if memory.is_main else _STATE_PARTS
    num_fitting = max(0, memory.free_bytes - bounds.beside_bytes) // (parts * state_bytes)
    return max(_LEAST_SLOTS, min(2 * bounds.max_batch_size, num_fitting))


def _automatic(memory: DeviceMemory, model: PoolModel, bounds: PoolBounds) -> PoolSize:
    """Return how many blocks there is room for, 0 or more, but no more than are of use."""
    workspace = pass_bytes(model.shape, bounds)
    if memory.is_main:
        num_useful, why_useful, _ = _useful_on_cpu(model)
        free_bytes = max(0, memory.free_bytes - bounds.beside_bytes)
        left = free_bytes // _CPU_PARTS
        why_left = f"a quarter of the {told(free_bytes)} that are free of {told(memory.total_bytes)}"
    else:
        context_tokens = model.shape.max_context_tokens
        in_use = bounds.max_batch_size * -(-context_tokens // model.block_tokens)
        num_useful = max(USUAL_BLOCKS, in_use)  # a prefix cache has use for more than a few sequences do
        why_useful = f"no more than {bounds.max_batch_size} sequences of {context_tokens} tokens can use"
        allowed = int(memory.total_bytes * bounds.memory_share) - memory.own_bytes
        left = min(allowed, memory.free_bytes) - workspace - RESERVE_BYTES
        source = f"{bounds.memory_share:g} of {told(memory.total_bytes)} less {told(memory.own_bytes)} of the model"
        if allowed > memory.free_bytes:
            source = f"the {told(memory.free_bytes)} that are free beside the model"
        why_left = f"{source}, less {told(workspace)} of the largest pass and {told(RESERVE_BYTES)} in reserve"
    if bounds.planned_bytes:
        num_useful, why_useful = max(1, bounds.planned_bytes // model.block_bytes), "planned_kv_bytes says so"
        if memory.is_main:
            left, why_left = free_bytes, f"the {told(free_bytes)} that are free"
    num_fitting = max(0, left) // (model.block_bytes + model.row_bytes)
    if num_useful <= num_fitting:
        return PoolSize(num_useful, why_useful)
    beside = ", shared with rows that decode" if model.row_bytes else ""
    return PoolSize(num_fitting, f"{why_left}{beside}")


def _useful_on_cpu(model: PoolModel) -> PoolSize:
    """Return the usual number, or as many as the longest sequence of the model needs."""
    num_longest = -(-model.shape.max_context_tokens // model.block_tokens)
    if num_longest <= USUAL_BLOCKS:
        return PoolSize(USUAL_BLOCKS, "the usual number on a CPU")
    return PoolSize(num_longest, f"as one sequence of {model.shape.max_context_tokens} tokens needs")
