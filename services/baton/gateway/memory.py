"""Main memory of a gateway: how large a request may be, and how much of them it holds, of what its container leaves."""

from __future__ import annotations

import logging
from typing import NamedTuple

from baton.config.container_limits import Memory
from baton.config.memory_budget import Claim, room_in, share_out
from baton.errors import ConfigurationError
from baton.gateway.settings import GatewaySettings

log = logging.getLogger(__name__)

TOKENIZING_BYTES = 240
"""Memory that a byte of text takes while it is tokenized: 207 to 225 were measured, where each is a token."""
HOLDING_BYTES = 16
"""Memory that a byte of a body takes until its answer has ended: text, tokens and messages made of it."""
LONG_CHARACTERS = 64 << 10
"""Characters, or tokens, above which a prompt is long: such are tokenized one at a time."""
MOST_BODY_BYTES, LEAST_BODY_BYTES = 8 << 20, 64 << 10
"""Bounds of the largest body where nobody says how large it may be."""
_MOST_BODIES, _LEAST_BODIES = 1024, 4


class GatewayMemory(NamedTuple):
    """What a gateway may hold."""

    max_body_bytes: int
    """Largest body of a request."""
    held_bytes: int
    """Bodies of all requests that are read or in work."""


def memory_of(settings: GatewaySettings, memory: Memory, machine: Memory) -> GatewayMemory:
    """Return what a gateway may hold; raise ConfigurationError with the sum if `max_body_bytes` does not fit."""
    given = None if settings.max_body_bytes == "auto" else settings.max_body_bytes
    body_cost = TOKENIZING_BYTES  # long ones are tokenized one at a time, beside short ones in the other threads
    largest = MOST_BODY_BYTES if given is None else given
    claims = [
        Claim(
            "max_body_bytes",
            MOST_BODY_BYTES * body_cost,
            LEAST_BODY_BYTES * body_cost,
            given_bytes=None if given is None else given * body_cost,
        ),
        Claim(
            "requests in work",
            _MOST_BODIES * largest * HOLDING_BYTES,
            _LEAST_BODIES * (given or LEAST_BODY_BYTES) * HOLDING_BYTES,
        ),
    ]
    short_bytes = settings.tokenizer_threads * LONG_CHARACTERS * TOKENIZING_BYTES
    claims.append(Claim("short prompts", short_bytes, short_bytes, given_bytes=short_bytes))
    room = room_in(memory, machine)
    room = room._replace(num_bytes=room.num_bytes // settings.processes)
    try:
        shares = share_out(room, claims)
    except ConfigurationError as error:
        told = (
            f"max_body_bytes: each byte takes {body_cost} while it is tokenized, and {HOLDING_BYTES} until its answer"
        )
        raise ConfigurationError(f"{told} has ended: {error.message}") from error
    max_body_bytes = shares["max_body_bytes"] // body_cost
    held_bytes = shares["requests in work"] // HOLDING_BYTES
    log.info("memory_shared room_bytes=%d cause=%r max_body_bytes=%d held_bytes=%d", *room, max_body_bytes, held_bytes)
    return GatewayMemory(max_body_bytes, held_bytes)
