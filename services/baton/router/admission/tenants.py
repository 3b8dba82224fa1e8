"""What each tenant has been given and refused lately, and who has had more than its share."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

HALF_LIFE_SECONDS = 10.0
"""Time after which work counts half."""
ACTIVE_SECONDS = 10.0
"""A tenant that has asked for nothing for longer has no share."""
ABOVE_SHARE, BELOW_SHARE = 1.05, 0.9
"""A tenant is above or below its share from so many times its share on: equal ones do not take turns at it."""
OVERLOAD_SHARE = 0.05
"""There is overload while at least so much of the work that is asked for is refused."""
MAX_TENANTS = 1024
"""Tenants remembered; the one that has not asked for longest goes first."""


@dataclass(slots=True)
class _Account:
    """Work in predicted seconds, decayed to `updated_at_seconds`."""

    admitted_seconds: float
    refused_seconds: float
    asked_at_seconds: float
    updated_at_seconds: float
    weight: int = 1

    def decay(self, now_seconds: float) -> None:
        factor = 0.5 ** (max(0.0, now_seconds - self.updated_at_seconds) / HALF_LIFE_SECONDS)
        self.admitted_seconds *= factor
        self.refused_seconds *= factor
        self.updated_at_seconds = now_seconds


class TenantShares:
    """Decayed work by tenant; the active ones have shares by weight of what is admitted.

    Invariant, kept by `ask`: in the order in which tenants last asked, at most MAX_TENANTS. One that becomes active
    begins with a full share, so that nobody who was there pays for it.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._accounts: OrderedDict[str, _Account] = OrderedDict()

    def __len__(self) -> int:
        return len(self._accounts)

    def ask(self, tenant: str, weight: int = 1) -> None:
        """Note that a tenant asks for work. O(tenants), as all that follows."""
        now = self._clock()
        for account in self._accounts.values():
            account.decay(now)
        account = self._accounts.pop(tenant, _Account(0.0, 0.0, now - ACTIVE_SECONDS, now))
        account.weight = weight
        if now - account.asked_at_seconds >= ACTIVE_SECONDS:
            account.admitted_seconds = weight * self._mean_seconds()
        account.asked_at_seconds = now
        self._accounts[tenant] = account
        if len(self._accounts) > MAX_TENANTS:
            self._accounts.popitem(last=False)

    def admit(self, tenant: str, work_seconds: float) -> None:
        """Charge a tenant with work that it is given."""
        if tenant in self._accounts:
            self._accounts[tenant].admitted_seconds += work_seconds

    def refuse(self, tenant: str, work_seconds: float) -> None:
        """Note work that a tenant is refused."""
        if tenant in self._accounts:
            self._accounts[tenant].refused_seconds += work_seconds

    def share(self, tenant: str) -> float:
        """Return what a tenant that asks has been given over its share; 1 without overload, or others."""
        active = self._active()
        account = self._accounts.get(tenant)
        if account is None or len(active) < 2:
            return 1.0
        admitted_seconds = sum(each.admitted_seconds for each in active)
        refused_seconds = sum(each.refused_seconds for each in active)
        if refused_seconds <= OVERLOAD_SHARE * (admitted_seconds + refused_seconds) or not admitted_seconds:
            return 1.0
        return account.admitted_seconds * sum(each.weight for each in active) / (account.weight * admitted_seconds)

    def _active(self) -> list[_Account]:
        since = self._clock() - ACTIVE_SECONDS
        return [account for account in self._accounts.values() if account.asked_at_seconds > since]

    def _mean_seconds(self) -> float:
        """Return what active tenants have been given for one of weight."""
        active = self._active()
        total_weight = sum(account.weight for account in active)
        return sum(account.admitted_seconds for account in active) / total_weight if active else 0.0
