"""How the positions of a pass are shared by prompts."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from collections.abc import Sequence as Seq
from typing import NamedTuple

from baton.capacity.cost import overtaking
from baton.engine.scheduling.admission import short_tokens


def reachable_target(target_seconds: float, decode_seconds: float, num_waiting: int, num_decoding: int) -> float:
    """Return what a pass may take: the target, if decoding alone takes less than that.

    A target that decoding alone misses protects nothing, and would starve prompts for it. Then a pass takes so much
    longer that those who decode, num_decoding · seconds, lose no more than those who wait gain, num_waiting · a pass.
    """
    if decode_seconds < target_seconds:
        return target_seconds
    return decode_seconds * (1.0 + num_waiting / max(1, num_decoding))


class PromptDemand(NamedTuple):
    """What a prompt could use of a pass."""

    num_tokens: int
    """Positions that may be computed of it in one pass, 1 or more."""
    num_pending: int
    """Positions that are left of it in all."""
    priority: int


def share_tokens(
    demands: Seq[PromptDemand], num_tokens: int, room_behind: Callable[[int, int], int] | None = None
) -> list[int]:
    """Deal a pass's positions out to prompts.

    A `SHORT_SHARE` goes to who is through sooner by it, so that a short prompt never waits for all of a long one, and
    has no lower priority than another; the rest goes by turns, so that later prompts hardly delay earlier ones. What
    one share has left over, the other uses.

    `demands` are in order of turns, which end where `is_enough` says so of the positions dealt out by then and the
    prompts that are through with them. Returns positions for each prompt: none above its `num_tokens`, together as many
    as there are and are wanted.
    """
    urgent = min((each.priority for each in demands), default=0)
    sooner = [
        index for index in overtaking([each.num_pending for each in demands]) if demands[index].priority == urgent
    ]
    granted = [0] * len(demands)
    num_short = short_tokens(num_tokens) if sooner else 0
    num_left = num_tokens - num_short + _deal(demands, granted, sooner, num_short)
    num_ended = sum(granted[index] == demands[index].num_pending for index in sooner)
    for index in range(len(demands)):
        before, num_left = num_left, _deal(demands, granted, (index,), num_left)
        if num_left < before and granted[index] == demands[index].num_pending:
            num_ended += 1
            if room_behind:
                num_dealt = num_tokens - num_left
                num_left = min(num_left, room_behind(num_dealt, num_ended))
                num_tokens = num_dealt + num_left
    return granted


def _deal(demands: Seq[PromptDemand], granted: list[int], order: Iterable[int], num_tokens: int) -> int:
    """Give as much as each can use, in this order; return what is left."""
    for index in order:
        taken = min(demands[index].num_tokens - granted[index], num_tokens)
        granted[index] += taken
        num_tokens -= taken
    return num_tokens
