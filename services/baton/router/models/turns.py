"""Models that requests have loaded take turns where not all have room. Pure but for its clock."""

from __future__ import annotations

from collections.abc import Callable

from baton.capacity.planning.search import Holders

_ASKED_SECONDS = 5.0
"""After the last word of a request that waits for a model, for which it still counts; gateways say so every second."""


class Turns:
    """Who has been used, has come and is waited for, and when."""

    def __init__(self, clock: Callable[[], float], turn_seconds: float) -> None:
        self._clock = clock
        self._turn_seconds = turn_seconds
        self.used_at: dict[str, float] = {}
        """When a request wanted a model last, by the clock."""
        self._came_at: dict[str, float] = {}
        """When a model was loaded last, by the clock: as it began to serve, or later where it does not yet."""
        self._waiting_since: dict[str, float] = {}
        """Since when requests wait for a model."""

    def note_use(self, name: str) -> bool:
        """Take note that a request wants a model; return whether nobody else waits for it."""
        self.used_at[name] = self._clock()
        return self._waiting_since.setdefault(name, self._clock()) == self._clock()

    def note_load(self, name: str) -> None:
        """Take note that a model is being loaded."""
        self._came_at[name] = self._clock()

    def note_holders(self, held: Holders, serving: Holders) -> None:
        """Take note of the machines that hold each model, and of those whose worker takes requests."""
        self._came_at |= {name: self._clock() for name in held if name not in serving}
        self._waiting_since = {
            name: since
            for name, since in self._waiting_since.items()
            if name not in serving and self._clock() - self.used_at[name] < _ASKED_SECONDS
        }

    def is_idle(self, name: str, seconds: float) -> bool:
        """Return whether no request has wanted a model for so long."""
        return self._clock() - self.used_at.get(name, -seconds - 1.0) > seconds

    def rank(self, name: str) -> tuple[int, float]:
        """Return what sorts models: who has just come stays; then who waits longest; then the last used."""
        if self.left_seconds(name) > 0:
            return 0, self._came_at[name]
        since = self._waiting_since.get(name)
        return (1, since) if since is not None else (2, -self.used_at.get(name, 0.0))

    def left_seconds(self, name: str) -> float:
        """Return for how long a model still has its turn; 0 or less: it has none."""
        return self._came_at.get(name, -self._turn_seconds) + self._turn_seconds - self._clock()
