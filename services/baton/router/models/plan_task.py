"""The search for the best plan, beside the router's event loop: requests must not wait for what it takes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass

from baton.capacity.planning.pricing import Machine, WantedModel
from baton.capacity.planning.search import Holders, ModelPlan, PlanSearch
from baton.capacity.snapshot import DECLARED_LINK, Link

_MOST_SHARE = 0.1
"""Of the time that searches may take: they share the interpreter with the event loop."""


@dataclass(frozen=True)
class PlanTask:
    """What is planned for."""

    machines: tuple[Machine, ...]
    wanted: tuple[WantedModel, ...]
    links: Mapping[tuple[str, str], Link]
    """Measured ones, by the ids of machines."""
    today: Holders

    def search(self) -> PlanSearch:
        """Return the search among plans for it."""
        return PlanSearch(self.machines, self.wanted, self.links, DECLARED_LINK)


def are_alike(task: PlanTask | None, other: PlanTask | None) -> bool:
    """Return whether a plan for one can be carried out for the other: machines and holders are the same."""
    ours, theirs = (each and (each.today, [machine.machine_id for machine in each.machines]) for each in (task, other))
    return ours == theirs


class PlanFinder:
    """Finds the plans of one task after the other."""

    def __init__(self) -> None:
        self._forecasting = asyncio.Lock()
        self._task: PlanTask | None = None
        self._found: tuple[ModelPlan, ModelPlan | None] | None = None
        self.pause_seconds = 0.0
        """For which the next search has to wait; 0: the last one had nothing to do."""

    async def find(self, task: PlanTask) -> tuple[ModelPlan, ModelPlan | None]:
        """Return the best plan, and the one with today's holders; None: those do not fit."""
        self.pause_seconds = 0.0
        if self._found is None or task != self._task:
            began = time.perf_counter()
            self._task, self._found = task, await asyncio.to_thread(_plans, task)
            self.pause_seconds = (time.perf_counter() - began) * (1 / _MOST_SHARE - 1)
        return self._found

    async def forecast(self, task: PlanTask) -> ModelPlan:
        """Return the best plan for what somebody only asks about; one search after the other."""
        async with self._forecasting:
            return await asyncio.to_thread(lambda: task.search().best())


def _plans(task: PlanTask) -> tuple[ModelPlan, ModelPlan | None]:
    search = task.search()
    return search.best(), search.plan_of(task.today)
