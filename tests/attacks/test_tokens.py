"""Finding 17: a token was for ever and for everybody, and five wrong ones kept all machines behind an address out."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest

from attacks.deployment import Deployment
from attacks.victims import full
from baton.errors import AuthenticationError, BatonError, OverloadedError
from baton.router.join_verification import MAX_FAILURES

_HOUR = timedelta(hours=1)


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    """Run a router that takes machines in."""
    with Deployment(tmp_path_factory.mktemp("deployment"), {"router": "router"}) as running:
        first = running.joiner("mac-0", running.token(datetime.now(UTC) + _HOUR))
        asyncio.run(first.join())  # waits until the router answers
        yield running


async def _refusal(
    deployment: Deployment, node_id: str, ends_at: datetime, secret: str = ""
) -> type[BatonError] | None:
    """Return how the router refuses a machine; None: it does not."""
    token = deployment.token(ends_at)
    if secret:
        token = type(token)(secret, token.authority)
    try:
        await deployment.joiner(node_id, token).ask()
    except (AuthenticationError, OverloadedError) as error:
        return type(error)
    return None


@full
def test_a_token_that_leaks_lets_nobody_else_in(deployment: Deployment) -> None:
    """Neither another machine, nor anybody later; nor is the deployment's secret itself one."""
    now = datetime.now(UTC)
    shown = deployment.token(now + _HOUR).join_pass

    async def attack() -> list[type[BatonError] | None]:
        return [
            await _refusal(deployment, "mac-1", now + _HOUR, shown),
            await _refusal(deployment, "mac-2", now + _HOUR, shown),
            await _refusal(deployment, "mac-3", now - timedelta(seconds=1)),
            await _refusal(deployment, "mac-4", now + _HOUR, deployment.secret),
        ]

    assert asyncio.run(attack()) == [None, AuthenticationError, AuthenticationError, AuthenticationError]


@full
def test_wrong_tokens_stop_neither_renewals_nor_newcomers(deployment: Deployment) -> None:
    """All of them come from one address, as behind a NAT; only what is wrong waits."""
    now = datetime.now(UTC)

    async def attack() -> None:
        for _ in range(MAX_FAILURES + 3):
            last = await _refusal(deployment, "thief", now + _HOUR, "w" * 64)
        assert last is OverloadedError
        assert await _refusal(deployment, "mac-0", now - _HOUR) is None  # a renewal, by its certificate
        assert await _refusal(deployment, "mac-5", now + _HOUR) is None

    asyncio.run(attack())
