"""The order of prompts: by when they came, by their priorities, and by what routers placed before what.

A sequence's turn is fixed when it comes: that moment, later by `LEVEL_SECONDS` per level of its priority. A level
counts as that much waiting; a prompt that came later than that overtakes none, so none waits for ever.
"""

from __future__ import annotations

import math
from itertools import takewhile

from baton.engine.sequence import Sequence, SequenceQueues
from baton.placement_ids import is_placed_before

LEVEL_SECONDS = 5.0
"""Waiting that makes up for one level of priority."""
LATE_SECONDS = 5.0
"""By how much at most a call comes late to be put in the order of placements."""


def turn_seconds(sequence: Sequence, now: float, queues: SequenceQueues) -> float:
    """Return when a sequence's turn is: before prompts that the same router placed later but that came sooner."""
    request = sequence.request
    due = first = due_seconds(now, request.priority)
    for queue in (queues.waiting, queues.running) if request.placement_id else ():
        for each in takewhile(lambda each: each.queue_key.due_seconds > due - LATE_SECONDS, reversed(queue)):
            is_later = is_placed_before(request.placement_id, each.request.placement_id)
            if is_later and each.request.priority == request.priority and not each.stats.first_token:
                first = min(first, math.nextafter(each.queue_key.due_seconds, -math.inf))
    return first


def due_seconds(arrival_seconds: float, priority: int) -> float:
    """Return the moment by which a sequence's turn is reckoned; the earliest comes first."""
    return arrival_seconds + LEVEL_SECONDS * priority
