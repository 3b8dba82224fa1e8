"""Keeps something running for each replica of a service, as replicas come and go."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from typing import Generic, TypeVar

from baton.discovery.source import AddressSource

MemberT = TypeVar("MemberT")


class Replicas(Generic[MemberT]):
    """One member per address. Invariant: while `run` runs, exactly the members of the known addresses run.

    Args:
        source: Knows the addresses.
        make: Returns the member of an address.
        run: Runs a member until cancelled.
        on_gone: Called with an address after its member was told to end.
    """

    def __init__(
        self,
        source: AddressSource,
        make: Callable[[str], MemberT],
        run: Callable[[MemberT], Awaitable[None]],
        *,
        on_gone: Callable[[str], None] = lambda _address: None,
    ) -> None:
        self._source = source
        self._make = make
        self._run = run
        self._on_gone = on_gone
        self._members: dict[str, MemberT] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def __iter__(self) -> Iterator[MemberT]:
        """Yield the members that run."""
        return iter(tuple(self._members.values()))

    async def run(self) -> None:
        """Follow the addresses until cancelled, or until a member raises."""
        async with asyncio.TaskGroup() as tasks:
            await self._source.run(partial(self._update, tasks))

    def _update(self, tasks: asyncio.TaskGroup, addresses: frozenset[str]) -> None:
        for address in sorted(self._members.keys() - addresses):
            del self._members[address]
            self._tasks.pop(address).cancel()
            self._on_gone(address)
        for address in sorted(addresses - self._members.keys()):
            member = self._members[address] = self._make(address)
            self._tasks[address] = tasks.create_task(self._keep(member))

    async def _keep(self, member: MemberT) -> None:
        await self._run(member)
