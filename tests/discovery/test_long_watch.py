"""An hour of a watch, with the clock of the test."""

from __future__ import annotations

import asyncio
import gc
import logging
import random
import tracemalloc
from collections.abc import AsyncGenerator

import pytest

from baton.discovery.endpoints import Event, ExpiredError, Listing, Slice, WatchError
from baton.discovery.watch import EndpointWatch

_HOUR_SECONDS = 3600.0


class FakeHour:
    """An API whose time passes only when something waits, and which fails in every way there is."""

    def __init__(self) -> None:
        self.now_seconds = 0.0
        self.num_events = 0
        self.num_lists = 0
        self.version = 0
        self.slices: dict[str, Slice] = {}
        self._chance = random.Random(11)

    @property
    def addresses(self) -> frozenset[str]:
        """What is true."""
        return frozenset(address for each in self.slices.values() for address in each.addresses)

    async def sleep(self, seconds: float) -> None:
        """Let time pass."""
        self.now_seconds += seconds
        await asyncio.sleep(0)

    async def list_slices(self) -> Listing:
        """Return the truth, or fail."""
        self.num_lists += 1
        if self._chance.random() < 0.2:
            raise WatchError("no connection")
        return Listing(list(self.slices.values()), str(self.version))

    async def watch_slices(self, resource_version: str, seconds: float) -> AsyncGenerator[Event, None]:
        """Yield changes about every two seconds, and break now and then."""
        if int(resource_version) != self.version:
            raise ExpiredError("too old")
        end = self.now_seconds + seconds
        while self.now_seconds < end:
            self.now_seconds += self._chance.expovariate(0.5)
            yield self._change()
            fate = self._chance.random()
            if fate < 0.02:
                raise WatchError("cut")
            if fate < 0.04:
                self._change()  # while nobody looks
                raise ExpiredError("compacted")

    def _change(self) -> Event:
        self.num_events += 1
        self.version += 1
        name = f"slice-{self._chance.randrange(20)}"
        if name in self.slices and self._chance.random() < 0.3:
            return Event("DELETED", str(self.version), self.slices.pop(name))
        pods = frozenset(f"10.0.{self._chance.randrange(200)}.1:8010" for _ in range(10))
        self.slices[name] = Slice(name, pods)
        return Event("MODIFIED", str(self.version), self.slices[name])


def test_an_hour_of_changes_and_faults_leaves_nothing_behind(caplog: pytest.LogCaptureFixture) -> None:
    """After each hour the view is the truth, and the second hour needs no more memory than the first."""

    async def run() -> tuple[int, int]:
        api = FakeHour()
        views: list[frozenset[str]] = []
        watch = EndpointWatch(api, clock=lambda: api.now_seconds, sleep=api.sleep)

        def on_change(addresses: frozenset[str]) -> None:
            views[:] = [addresses]

        running = asyncio.create_task(watch.run(on_change))
        sizes = []
        for hour in (1, 2):
            end_seconds = hour * _HOUR_SECONDS
            # What lets the time of the test pass is that the loop goes round.
            while api.now_seconds < end_seconds or watch.state.resource_version != str(api.version):  # noqa: ASYNC110
                await asyncio.sleep(0)
            assert views == [api.addresses]
            assert watch.state._slices.keys() == api.slices.keys()
            gc.collect()  # what waits for the collector is not kept
            sizes.append(tracemalloc.get_traced_memory()[0])
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        assert api.num_events > 2000
        assert api.num_lists > 20
        return sizes[0], sizes[1]

    caplog.set_level(logging.ERROR)  # pytest would keep every warning
    tracemalloc.start()
    try:
        first, second = asyncio.run(run())
    finally:
        tracemalloc.stop()

    assert second - first < 200_000
