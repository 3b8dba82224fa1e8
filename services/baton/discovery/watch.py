"""Follows a Service's EndpointSlices: list, watch, watch again, and list anew where a watch cannot go on."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import aclosing
from functools import partial
from typing import Any, TypeAlias

from baton.discovery.endpoints import EndpointState, ExpiredError, ServiceTarget, WatchError, parse_target
from baton.discovery.kubernetes_api import KubernetesEndpointApi, in_cluster_api

log = logging.getLogger(__name__)

OnChange: TypeAlias = Callable[[frozenset[str]], None]
"""Takes all addresses; called when they change, and once when they are first known."""

WATCH_SECONDS = 60.0
"""Length of one watch request. A connection that hangs is noticed when it is over."""
RESYNC_SECONDS = 600.0
"""Time after which everything is listed anew, whatever the watch said."""
_FIRST_PAUSE_SECONDS = 0.1
_LONGEST_PAUSE_SECONDS = 5.0
_SHORTEST_WATCH_SECONDS = 1.0
"""A watch that ends sooner has failed, however it ended: the server is not asked again and again without a pause."""
_SLACK_SECONDS = 5.0
_LIST_TIMEOUT_SECONDS = 15.0


class EndpointWatch:
    """Keeps the view of one Service right, for as long as `run` runs.

    While the server is away the last view stays: pods outlive an API server's absence. Errors are retried with growing
    pauses; the first after news or a whole watch is logged as a warning, further ones are not.
    """

    def __init__(
        self,
        api: KubernetesEndpointApi,
        *,
        watch_seconds: float = WATCH_SECONDS,
        clock: Callable[[], float] | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self.state = EndpointState()
        self._api, self._watch_seconds = api, watch_seconds
        self._clock = clock or (lambda: asyncio.get_running_loop().time())
        self._sleep = sleep
        self._published: frozenset[str] | None = None
        self._num_failures = 0

    async def run(self, on_change: OnChange) -> None:
        """Follow the Service until cancelled."""
        is_list_due = True
        listed_at = 0.0
        while True:
            try:
                if is_list_due or self._clock() - listed_at > RESYNC_SECONDS:
                    async with asyncio.timeout(_LIST_TIMEOUT_SECONDS):
                        self.state.replace(await self._api.list_slices())
                    listed_at, is_list_due = self._clock(), False
                    if self._publish(on_change):
                        self._succeeded()
                async with asyncio.timeout(self._watch_seconds + _SLACK_SECONDS):
                    await self._watch(on_change)
            except ExpiredError as error:
                is_list_due = True
                self._failed(error)
            except (WatchError, TimeoutError) as error:
                self._failed(error)
            if self._num_failures:
                await self._sleep(self._pause_seconds())

    async def _watch(self, on_change: OnChange) -> None:
        started = self._clock()
        async with aclosing(self._api.watch_slices(self.state.resource_version, self._watch_seconds)) as events:
            async for event in events:
                self.state.apply(event)
                self._succeeded()
                self._publish(on_change)
        if self._clock() - started < _SHORTEST_WATCH_SECONDS:
            raise WatchError("the watch ended at once")
        self._succeeded()

    def _publish(self, on_change: OnChange) -> bool:
        """Tell of the addresses if they have changed; return whether they have."""
        addresses = self.state.addresses
        has_changed = addresses != self._published
        if has_changed:
            self._published = addresses
            on_change(addresses)
        return has_changed

    def _succeeded(self) -> None:
        if self._num_failures:
            log.info("discovery_restored failures=%d", self._num_failures)
        self._num_failures = 0

    def _failed(self, error: Exception) -> None:
        level = logging.DEBUG if self._num_failures else logging.WARNING
        log.log(level, "discovery_failed cause=%s", error or type(error).__name__)
        self._num_failures += 1

    def _pause_seconds(self) -> float:
        """Return a pause that doubles with each failure, less up to half of it, so that pods do not ask in step."""
        doubled = _FIRST_PAUSE_SECONDS * 2.0 ** min(max(self._num_failures - 1, 0), 10)
        return min(doubled, _LONGEST_PAUSE_SECONDS) * random.uniform(0.5, 1.0)  # noqa: S311 - spreads load, guards nothing


AddressSource: TypeAlias = Callable[[OnChange], Coroutine[Any, Any, None]]
"""Says all addresses of a service at once and whenever they change, until cancelled."""


async def say_once(addresses: frozenset[str], on_change: OnChange) -> None:
    """Say addresses that do not change; return when cancelled."""
    on_change(addresses)
    await asyncio.Event().wait()


def open_source(text: str) -> AddressSource:
    """Return the source that a setting names (see `parse_target`), or raise ConfigurationError."""
    target = parse_target(text)
    return EndpointWatch(in_cluster_api(target)).run if isinstance(target, ServiceTarget) else partial(say_once, target)
