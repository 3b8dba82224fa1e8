"""Finds out by trying which of two ways of doing the same is done sooner on this machine."""

from __future__ import annotations

from collections.abc import Callable


def gain(
    own: Callable[[], object], other: Callable[[], object], *, num_rounds: int, clock: Callable[[], float]
) -> float:
    """Return how many times as long the other way takes: of the least seconds of each, which take turns.

    Args:
        own: One way.
        other: Another.
        num_rounds: Turns of each, 1 or more.
        clock: Seconds of the CPU where one thread works, else of the wall.
    """

    def seconds(way: Callable[[], object]) -> float:
        started_seconds = clock()
        way()
        return clock() - started_seconds

    rounds = [(seconds(own), seconds(other)) for _ in range(num_rounds)]
    return min(other for _, other in rounds) / min(own for own, _ in rounds)
