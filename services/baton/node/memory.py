"""Main memory of a node beside its model: what each part of it may hold, of what a container or the machine leaves.

Blocks come first, where they are in main memory: they are chosen as the model is loaded, and leave room for what was
given to others by hand and for what these cannot do without. The others share the rest.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace

from baton.config.container_limits import Memory, machine_memory, usable_memory
from baton.config.memory_budget import Claim, room_in, share_out, told
from baton.engine.kv_cache.pool_size import PoolBounds
from baton.engine.runners.base import Runner
from baton.errors import ConfigurationError
from baton.node.settings import NodeSettings

log = logging.getLogger(__name__)

LONE_PROMPT = "lone_prompt_bytes"
"""Name of what KV of one prompt alone may take on its way out, where that is more than `max_outbox_bytes`."""


def pool_bounds(settings: NodeSettings) -> PoolBounds:
    """Return what settings say of the room for blocks, before the model is loaded."""
    share, planned_bytes = settings.device_memory_share, settings.planned_kv_bytes
    bounds = PoolBounds(share, settings.max_batch_size, settings.max_step_tokens, planned_bytes=planned_bytes)
    return leave_room(bounds, settings.memory_claims(), usable_memory(), machine_memory())


def leave_room(bounds: PoolBounds, claims: Sequence[Claim], memory: Memory, machine: Memory) -> PoolBounds:
    """Return bounds of blocks that leave room for others."""
    reserved_bytes = memory.free_bytes - room_in(memory, machine).num_bytes
    parts = [f"{claim.setting} {told(claim.needed_bytes)}" for claim in claims if claim.needed_bytes]
    return replace(
        bounds,
        beside_bytes=reserved_bytes + sum(claim.needed_bytes for claim in claims),
        beside_cause=" + ".join([*parts, f"{told(reserved_bytes)} in reserve"]),
    )


def share_memory(settings: NodeSettings, runner: Runner) -> Mapping[str, int]:
    """Return the bytes of each claim, and of a lone prompt; raise ConfigurationError if they do not fit."""
    relief_bytes = runner.num_blocks * runner.block_tokens * runner.info.layout.num_token_bytes() // 2
    claims = [
        replace(claim, most_bytes=min(claim.most_bytes, relief_bytes)) if claim.setting == "host_kv_bytes" else claim
        for claim in settings.memory_claims()
    ]
    return shares_of(claims, usable_memory(), machine_memory(), untaken_bytes=runner.untaken_bytes)


def shares_of(claims: Sequence[Claim], memory: Memory, machine: Memory, *, untaken_bytes: int = 0) -> Mapping[str, int]:
    """Return each claim's bytes by its setting, and a lone prompt's; raise ConfigurationError with the sum."""
    room = room_in(memory, machine, beside_bytes=untaken_bytes)
    try:
        shares = dict(share_out(room, claims))
    except ConfigurationError as error:
        raise ConfigurationError(f"memory: {error.message}") from error
    spare = share_out(
        room._replace(num_bytes=room.num_bytes - sum(shares.values())), [Claim(LONE_PROMPT, room.num_bytes)]
    )
    shares[LONE_PROMPT] = shares.get("max_outbox_bytes", 0) + spare[LONE_PROMPT]
    log.info(
        "memory_shared room_bytes=%d cause=%r %s", *room, " ".join(f"{name}={size}" for name, size in shares.items())
    )
    return shares
