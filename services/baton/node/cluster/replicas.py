"""Keeps a stream to each replica of a service, as replicas come and go, and as streams break."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import Any, Generic, TypeVar

import grpc

from baton.discovery.watch import AddressSource
from baton.errors import SupersededError
from baton.rpc.channel import open_channel
from baton.rpc.status import error_from_rpc

log = logging.getLogger(__name__)
_RETRY_SECONDS = 0.25
_MAX_RETRY_SECONDS = 2.0
LINGER_SECONDS = 10.0
"""Time for which a replica that is no longer listed keeps its stream. Its listing ends before its process: others still
ask a router that goes, and without its nodes it would tell them that there are none."""
MemberT = TypeVar("MemberT")


class Replicas(Generic[MemberT]):
    """One member per address.

    Invariant: while `run` runs, the members of known addresses run, and for `linger_seconds` those known no more.
    `on_gone` is called with an address after its member was told to end.
    """

    def __init__(
        self,
        source: AddressSource,
        make: Callable[[str], MemberT],
        run: Callable[[MemberT], Coroutine[Any, Any, None]],
        *,
        on_gone: Callable[[str], None] = lambda _address: None,
        linger_seconds: float = LINGER_SECONDS,
    ) -> None:
        self._source, self._make = source, make
        self._run, self._on_gone = run, on_gone
        self._linger_seconds = linger_seconds
        self._lingering: dict[str, asyncio.TimerHandle] = {}
        self.members: dict[str, MemberT] = {}
        """Those that run, by address."""
        self._tasks: dict[str, asyncio.Task[None]] = {}

    async def run(self) -> None:
        """Follow the addresses until cancelled, or until a member raises."""
        try:
            async with asyncio.TaskGroup() as tasks:
                await self._source(partial(self._update, tasks))
        finally:
            for timer in self._lingering.values():
                timer.cancel()

    def _update(self, tasks: asyncio.TaskGroup, addresses: frozenset[str]) -> None:
        for address in sorted(self.members.keys() - addresses - self._lingering.keys()):
            timer = asyncio.get_running_loop().call_later(self._linger_seconds, self._end, address)
            self._lingering[address] = timer
        for address in self._lingering.keys() & addresses:
            self._lingering.pop(address).cancel()
        for address in sorted(addresses - self.members.keys()):
            member = self.members[address] = self._make(address)
            self._tasks[address] = tasks.create_task(self._run(member))

    def _end(self, address: str) -> None:
        del self._lingering[address], self.members[address]
        self._tasks.pop(address).cancel()
        self._on_gone(address)


async def stay_connected(service: str, address: str, use: Callable[[grpc.aio.Channel], Awaitable[None]]) -> None:
    """Call `use` with a channel to `address`, again and again, until cancelled.

    The first failure after a connection is logged as a warning, further ones are not: a service that is away for an
    hour should not fill the log. Another process that has this node's name does not end this one: it waits, and has the
    name once the other has gone.
    """
    pause, is_lost = _RETRY_SECONDS, False
    while True:
        started = asyncio.get_running_loop().time()
        try:
            async with open_channel(address) as channel:
                await use(channel)
        except grpc.aio.AioRpcError as rpc_error:
            error = error_from_rpc(rpc_error)
            level = logging.DEBUG if is_lost else logging.WARNING
            event = "name_taken" if isinstance(error, SupersededError) else "connection_lost"
            log.log(level, "%s service=%s address=%s cause=%s", event, service, address, error.message)
        has_lasted = asyncio.get_running_loop().time() - started > _MAX_RETRY_SECONDS
        is_lost = not has_lasted
        pause = _RETRY_SECONDS if has_lasted else min(2 * pause, _MAX_RETRY_SECONDS)
        await asyncio.sleep(pause)
