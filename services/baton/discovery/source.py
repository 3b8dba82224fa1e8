"""Where addresses come from: one seam for those who follow a service."""

from __future__ import annotations

import asyncio
from typing import Protocol

from baton.discovery.kubernetes_api import in_cluster_api
from baton.discovery.target import ServiceTarget, parse_target
from baton.discovery.watch import EndpointWatch, OnChange


class AddressSource(Protocol):
    """Knows the addresses of a service."""

    async def run(self, on_change: OnChange) -> None:
        """Say all addresses at once and whenever they change, until cancelled."""


class FixedAddresses:
    """Addresses that do not change."""

    def __init__(self, addresses: frozenset[str]) -> None:
        self._addresses = addresses

    async def run(self, on_change: OnChange) -> None:
        """Say them once."""
        on_change(self._addresses)
        await asyncio.Event().wait()


def open_source(text: str) -> AddressSource:
    """Return the source that a setting names (see `baton.discovery.target`), or raise ConfigurationError."""
    target = parse_target(text)
    if isinstance(target, ServiceTarget):
        return EndpointWatch(in_cluster_api(target))
    return FixedAddresses(target.addresses)
