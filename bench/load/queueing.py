"""How long requests wait in front of a node that computes one after the other, by formula."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise


def waits(arrival_seconds: Sequence[float], service_seconds: float) -> list[float]:
    """Return each request's wait in order of arrival, if every one takes equally long.

    The recursion over the arrivals that were: a request waits for what the one before it still has to wait and to be
    computed. Mean over many Poisson arrivals: `mean_wait_seconds`.

    Arrivals ascend; `service_seconds`, of each, is above 0.

    Source: D. V. Lindley, "The theory of queues with a single server", 1952.
    """
    found = [0.0] if arrival_seconds else []
    for before, now in pairwise(arrival_seconds):
        found.append(max(0.0, found[-1] + service_seconds - (now - before)))
    return found


def mean_wait_seconds(utilisation: float, service_seconds: float) -> float:
    """Return the mean wait of an M/D/1 queue; infinite from a utilisation of 1 on.

    Source: F. Pollaczek and A. Khinchine; u · s / (2 · (1 - u)) for service times without spread.
    """
    if utilisation >= 1:
        return float("inf")
    return utilisation * service_seconds / (2 * (1 - utilisation))
