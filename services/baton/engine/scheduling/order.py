"""The order of prompts: by when they came, by their priorities, and by what routers placed before what.

A sequence's turn is fixed when it comes: that moment, later by `LEVEL_SECONDS` per level of its priority. A level
counts as that much waiting; a prompt that came later than that, and by more than `LATE_SECONDS`, overtakes none, so
none waits for ever.
"""

from __future__ import annotations

from baton.engine.sequence import Sequence, SequenceQueues
from baton.placement_ids import seconds_between

LEVEL_SECONDS = 5.0
"""Waiting that makes up for one level of priority."""
LATE_SECONDS = 5.0
"""By how much at most a call comes late to be put in the order of placements."""


def turn_seconds(sequence: Sequence, now: float, queues: SequenceQueues) -> float:
    """Return when a sequence's turn is: as long before others' as their router had placed it before them.

    Others are those of the same priority without a first token, whose turn is `LATE_SECONDS` before its own or less.
    """
    request = sequence.request
    due = turn = due_seconds(now, request.priority)
    for queue in (queues.waiting, queues.running) if request.placement_id else ():
        for each in reversed(queue):
            if each.queue_key.due_seconds < due - LATE_SECONDS:
                break
            if each.request.priority == request.priority and not each.stats.first_token:
                gap_seconds = seconds_between(request.placement_id, each.request.placement_id) or 0.0
                if gap_seconds < 0:
                    break  # as those whose turn is before that one's
                if gap_seconds:
                    turn = min(turn, each.queue_key.due_seconds - gap_seconds)
    return turn


def due_seconds(arrival_seconds: float, priority: int) -> float:
    """Return the moment by which a sequence's turn is reckoned; the earliest comes first."""
    return arrival_seconds + LEVEL_SECONDS * priority
