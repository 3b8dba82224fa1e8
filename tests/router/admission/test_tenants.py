"""Shares of tenants."""

from __future__ import annotations

import pytest

from baton.router.admission.tenants import ABOVE_SHARE, ACTIVE_SECONDS, MAX_TENANTS, TenantShares
from router.samples import Clock


def overloaded(clock: Clock, **admitted: float) -> TenantShares:
    """Return shares under overload."""
    shares = TenantShares(clock)
    for tenant in admitted:
        shares.ask(tenant)
    for tenant, seconds in admitted.items():
        shares.admit(tenant, seconds)
        shares.refuse(tenant, seconds)
    return shares


def test_whoever_has_had_more_than_the_mean_is_above_its_share() -> None:
    """And the other is not."""
    shares = overloaded(Clock(), a=3.0, b=1.0)

    assert shares.share("a") > ABOVE_SHARE
    assert shares.share("b") <= ABOVE_SHARE


def test_nobody_is_above_its_share_alone_or_without_overload() -> None:
    """What others do not ask for may be had."""
    calm = TenantShares(Clock())
    for tenant, seconds in {"a": 3.0, "b": 1.0}.items():
        calm.ask(tenant)
        calm.admit(tenant, seconds)

    assert overloaded(Clock(), a=3.0).share("a") <= ABOVE_SHARE
    assert calm.share("a") <= ABOVE_SHARE


def test_a_tenant_that_asks_no_more_has_no_share() -> None:
    """Who goes on asking is alone then."""
    clock = Clock()
    shares = overloaded(clock, a=3.0, b=1.0)
    clock.seconds += ACTIVE_SECONDS
    shares.ask("a")

    assert shares.share("a") <= ABOVE_SHARE


def test_a_newcomer_begins_with_a_full_share() -> None:
    """Who was there is not above its share because somebody came, and the newcomer is after its first work."""
    clock = Clock()
    shares = overloaded(clock, a=10.0)
    shares.ask("b")

    assert shares.share("a") <= ABOVE_SHARE
    shares.admit("b", 4.0)
    assert shares.share("b") > ABOVE_SHARE


def test_shares_are_by_weight() -> None:
    """Who has three times the weight may have three times as much; a newcomer begins with as much, too."""
    clock = Clock()
    shares = overloaded(clock, a=3.0, b=1.0)
    shares.ask("a", 3)
    shares.ask("c", 2)

    assert (shares.share("a"), shares.share("b"), shares.share("c")) == pytest.approx((1.0, 1.0, 1.0))


def test_tenants_are_bounded() -> None:
    """The one that has not asked for longest goes."""
    shares = TenantShares(Clock())
    for number in range(MAX_TENANTS + 50):
        shares.ask(str(number))

    assert len(shares) == MAX_TENANTS
