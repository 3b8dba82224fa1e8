"""When a plan is worth following, and what is done about it next: one change at a time. Pure but for its clock.

A model that nobody serves is loaded at once. Any other move waits until its gain has held for a while, and has to bring
in more than it costs; each machine that goes doubles that while, so that one which comes and goes moves nothing twice.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple

from baton.capacity.planning.pricing import UNIT
from baton.capacity.planning.search import Holders, ModelPlan

LEAST_GAIN = 0.1
"""Part of today's cost that a move saves at least."""
HORIZON_SECONDS = 600.0
"""For which a gain is expected to last."""
LOAD_BYTES_PER_SECOND = 1e9
"""At which weights are taken to come into memory."""
SETTLE_SECONDS = 30.0
"""For which a gain must have held, while no machine has gone of late."""
_FORGET_SECONDS = 3600.0
"""After which a machine's departure is forgotten; no move waits longer."""


class Change(NamedTuple):
    """One step from what is to what should be."""

    kind: Literal["load", "drain"]
    model: str
    machine_id: str


class Steadiness:
    """Decides which holders are aimed at."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._departures: list[float] = []
        self._wished: Holders = {}
        self._wished_since = 0.0
        self._is_hurried = False
        self.why = "nothing is wanted"
        """The last decision, in words."""

    @property
    def settle_seconds(self) -> float:
        """Return for how long a gain must have held."""
        self._departures = [each for each in self._departures if self._clock() - each < _FORGET_SECONDS]
        return min(_FORGET_SECONDS, SETTLE_SECONDS * 2.0 ** len(self._departures))

    def hurry(self) -> None:
        """Let no gain have to hold until what an operator has just changed is reached."""
        self._is_hurried = True

    def note_departure(self) -> None:
        """Take note that a machine has gone."""
        self._departures.append(self._clock())

    def aim(self, today: Holders, today_plan: ModelPlan | None, best: ModelPlan) -> Holders:
        """Return the holders to work towards: those of `today`, which cost `today_plan` (None: too much), or `best`."""
        wished = best.holders
        if wished != self._wished:
            self._wished, self._wished_since = wished, self._clock()
        self._is_hurried = self._is_hurried and any(wished[name] != today.get(name) for name in wished)
        if any(wished[name] and not today.get(name) for name in wished):
            self.why = "a model has no holder"
            return wished
        if not self._is_worth(today_plan, best):
            self.why = "no other plan is worth its move"
            return {name: today.get(name, frozenset()) for name in wished}
        waits = 0.0 if self._is_hurried else self._wished_since + self.settle_seconds - self._clock()
        if waits > 0:
            self.why = f"a better plan has to hold for {waits:.0f} s more"
            return {name: today.get(name, frozenset()) for name in wished}
        self.why = "a better plan has held long enough"
        return wished

    def _is_worth(self, today: ModelPlan | None, best: ModelPlan) -> bool:
        if today is None or best.price.missing < today.price.missing:
            return True
        if best.price >= today.price or best.holders == today.holders:
            return False
        gain = (today.price.cost - best.price.cost) * UNIT
        if gain <= 0:  # spares
            return True
        move_seconds = best.price.moved_bytes / LOAD_BYTES_PER_SECOND
        return gain >= LEAST_GAIN * today.price.cost * UNIT and gain * HORIZON_SECONDS > move_seconds


def next_change(
    aimed: Holders, held: Holders, serving: Holders, missing_bytes: Callable[[str, str], int]
) -> tuple[Change | None, str]:
    """Return the next change, and why there is none.

    A holder that is too much goes once another one serves, or nobody wants the model; before, the new one is loaded.
    `aimed`: holders to work towards; a model that is not among them is wanted nowhere. `held`: the machines that hold
    each model, ready or not. `serving`: those that take requests. `missing_bytes`: memory that a machine lacks to load
    a model, as it is measured now; 0 or less: none.
    """
    loads = [(name, machine) for name in sorted(aimed) for machine in sorted(aimed[name] - held.get(name, frozenset()))]
    # Who has no holder comes first.
    for name, machine in sorted(loads, key=lambda load: bool(held.get(load[0]))):
        if missing_bytes(name, machine) <= 0:
            return Change("load", name, machine), ""
    for name in sorted(held):
        wanted = aimed.get(name, frozenset())
        for machine in sorted(held[name] - wanted):
            if not wanted or serving.get(name, frozenset()) & wanted:
                return Change("drain", name, machine), ""
    waits = [f"{name} waits on {machine} for {missing_bytes(name, machine) / 1e9:.2f} GB" for name, machine in loads]
    return None, "; ".join(waits)
