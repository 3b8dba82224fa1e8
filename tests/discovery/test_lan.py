"""Routers on the local network."""

from __future__ import annotations

import asyncio
import os
from typing import Any

import pytest
from zeroconf.asyncio import AsyncZeroconf

from baton.discovery import lan
from baton.discovery.lan import announced, find_router
from baton.errors import ConfigurationError, UnavailableError


@pytest.fixture(autouse=True)
def own_service(monkeypatch: pytest.MonkeyPatch) -> str:
    """Announce and ask under a name that nobody else on this machine uses, another test run for one."""
    service = f"_baton{os.getpid()}"
    monkeypatch.setattr(lan, "SERVICE_TYPE", f"{service}._tcp.local.")
    return service


def test_an_announced_router_is_found() -> None:
    """By multicast on the loopback interface, which is all that this test may use."""

    async def main() -> None:
        async with announced("127.0.0.1", 8013, name="test_lan"):
            assert await find_router(20.0, interfaces=["127.0.0.1"]) == "127.0.0.1:8013"

    asyncio.run(main())


def test_a_router_whose_answer_is_lost_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its name is told only once."""
    ask, losses = AsyncZeroconf.async_get_service_info, iter([True])

    async def ask_in_vain_first(*arguments: Any) -> Any:
        return None if next(losses, False) else await ask(*arguments)

    monkeypatch.setattr(AsyncZeroconf, "async_get_service_info", ask_in_vain_first)

    async def main() -> None:
        async with announced("127.0.0.1", 8013, name="test_lan"):
            assert await find_router(20.0, interfaces=["127.0.0.1"]) == "127.0.0.1:8013"

    asyncio.run(main())


def test_where_nobody_answers_the_wait_ends(own_service: str) -> None:
    """The message says what was asked for."""

    async def main() -> None:
        with pytest.raises(UnavailableError, match=own_service):
            await find_router(0.05, interfaces=["127.0.0.1"])

    asyncio.run(main())


def test_an_address_that_cannot_be_announced_is_refused() -> None:
    """The message names the setting."""

    async def main() -> None:
        with pytest.raises(ConfigurationError, match="announce_address"):
            async with announced("router.example", 8013):
                pass

    asyncio.run(main())
