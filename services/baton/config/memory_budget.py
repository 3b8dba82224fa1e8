"""Shares what memory leaves a process out to all that may hold some: a bound for each, or a refusal with the sum. Pure.

Nothing is taken here. A bound is what its owner may come to hold, so that all of them together stay below the limit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from baton.config.container_limits import Memory
from baton.errors import ConfigurationError

RESERVED_SHARE = 0.1
"""Part of a limit that is left alone: the kernel counts pages that no budget knows, and kills without asking."""
_USED_SHARE = 0.75
"""Part of the rest that budgets add up to: what is freed stays with the allocator for a while, in other sizes."""


@dataclass(frozen=True, slots=True)
class Claim:
    """What one holder of memory asks for."""

    setting: str
    """Name of the setting that bounds it, in the words of its user."""
    most_bytes: int
    """More is of no use."""
    least_bytes: int = 0
    """Less, and the process could not work."""
    weight: float = 1.0
    """Its part of what is left, above 0, beside the weights of others."""
    given_bytes: int | None = None
    """By hand; None: it gets its part."""

    @property
    def needed_bytes(self) -> int:
        """Return what must fit."""
        return self.least_bytes if self.given_bytes is None else self.given_bytes


class Room(NamedTuple):
    """Memory that budgets may add up to."""

    num_bytes: int
    """0 or more."""
    cause: str
    """Where the number comes from, in words."""


def room_in(memory: Memory, machine: Memory, *, beside_bytes: int = 0) -> Room:
    """Return what is left for budgets."""
    is_limited = memory.total_bytes < machine.total_bytes
    reserved = int(RESERVED_SHARE * (memory.total_bytes if is_limited else memory.free_bytes))
    left = max(0, memory.free_bytes - reserved - beside_bytes)
    bound = f" of the limit of {told(memory.total_bytes)}" if is_limited else ""
    beside = f" and {told(beside_bytes)} that are still to be taken" if beside_bytes else ""
    cause = f"{told(memory.free_bytes)} are free{bound}, less {told(reserved)} in reserve{beside}"
    return Room(left, cause)


def check_fits(room: Room, claims: Sequence[Claim]) -> None:
    """Check that what was given by hand fits, and what others need; raise ConfigurationError with the sum if not."""
    needed = [claim for claim in claims if claim.needed_bytes]
    total = sum(claim.needed_bytes for claim in needed)
    if total <= room.num_bytes or not needed:
        return
    parts = " + ".join(_part(claim) for claim in needed)
    raise ConfigurationError(f"{parts} = {told(total)} do not fit into {told(room.num_bytes)}: {room.cause}")


def share_out(room: Room, claims: Sequence[Claim]) -> Mapping[str, int]:
    """Return the bytes of each claim, by its setting.

    What was given stays. The others share three quarters of the rest by their weights, none below its least or above
    its most; what one has no use for goes to the others. Raises ConfigurationError if what was given by hand, and the
    least of the others, do not fit; the message has the sum.
    """
    check_fits(room, claims)
    shares = {claim.setting: claim.given_bytes for claim in claims if claim.given_bytes is not None}
    open_claims = [claim for claim in claims if claim.given_bytes is None]
    left = _USED_SHARE * (room.num_bytes - sum(shares.values()))
    while open_claims:
        weights = sum(claim.weight for claim in open_claims)
        wanted = {claim.setting: left * claim.weight / weights for claim in open_claims}
        bounded = [claim for claim in open_claims if wanted[claim.setting] > claim.most_bytes]
        bounded = bounded or [claim for claim in open_claims if wanted[claim.setting] < claim.least_bytes]
        for claim in bounded or open_claims:
            shares[claim.setting] = max(claim.least_bytes, min(claim.most_bytes, int(wanted[claim.setting])))
            left = max(0.0, left - shares[claim.setting])
        open_claims = [claim for claim in open_claims if claim.setting not in shares]
    return shares


def told(num_bytes: float) -> str:
    """Return a number of bytes in words."""
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if num_bytes >= size:
            return f"{num_bytes / size:.3g} {unit}"
    return f"{num_bytes:.0f} B"


def _part(claim: Claim) -> str:
    at_least = "" if claim.given_bytes is not None else "at least "
    return f"{claim.setting} {at_least}{told(claim.needed_bytes)}"
