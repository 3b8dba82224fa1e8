"""Tenants, the owners of API keys: their caches are apart, and what can be in work at once they share by weight."""

from __future__ import annotations

import hmac
import logging
import math
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

from baton.errors import ConfigurationError, InvalidFieldError, OverloadedError
from baton.gateway.access.api_keys import ApiKey
from baton.gateway.access.key_limits import RETRY_AFTER_SECONDS

log = logging.getLogger(__name__)

OVERLAP_SECONDS = 3600.0
"""For which two secrets count: tenants go over to the next one by one, so that not all caches are cold at once."""
_LOOK_SECONDS = 1.0
_LEAST_CHARACTERS = 32
_NEXT = re.compile(rb"\s*\n(?=\S+ from=\S+\s*(?:\n|$))")
_PUBLIC_SECRET = "baton tenants"  # noqa: S105 - none: where there is no file, owners are told apart by their names alone


class _Secret(NamedTuple):
    begin_seconds: float
    """Since 1970; from then on tenants go over to it."""
    content: bytes


class TenantSalts:
    """Makes the salt of a tenant's cache: equal in every gateway of a deployment, for all keys of one owner.

    `secret_file`: holds the deployment's secret, and others that follow it; read again when it changes. None: salts
    follow from names, which no client can use either, for its own name is in its own. `now`: seconds since 1970; those
    of gateways agree. Raises ConfigurationError if the file cannot be read, or a secret is too short.
    """

    def __init__(self, secret_file: Path | None, now: Callable[[], float] = time.time) -> None:
        self._file, self._now = secret_file, now
        self._secrets = _read(secret_file) if secret_file else [_Secret(-math.inf, _PUBLIC_SECRET.encode())]
        self._looked_seconds, self._problem = now(), ""

    def salt_of(self, tenant: str, cache_salt: str) -> str:
        """Return what separates the cache of a request.

        Args:
            tenant: Owner of its API key; empty where there are no keys: then all are one.
            cache_salt: What the client asks for, within its own cache.
        """
        if not tenant:
            return cache_salt
        return hmac.digest(self._secret_of(tenant), f"{tenant}\0{cache_salt}".encode(), "sha256").hex()

    def id_of(self, tenant: str) -> str:
        """Return by what nodes tell a tenant from others, 16 characters that name nobody; empty without keys."""
        return hmac.digest(self._secret_of(tenant), f"id\0\0{tenant}".encode(), "sha256").hex()[:16] if tenant else ""

    def _secret_of(self, tenant: str) -> bytes:
        """Return the secret that counts for a tenant, which has a moment of its own in an overlap, by its name."""
        now = self._now()
        if self._file and abs(now - self._looked_seconds) >= _LOOK_SECONDS:
            self._looked_seconds, problem = now, ""
            try:
                self._secrets = _read(self._file)
            except ConfigurationError as error:
                problem = error.message
            if problem != self._problem:
                self._problem = problem
                log.warning("tenant_secrets_read file=%s error=%r", self._file, problem)
        waited = OVERLAP_SECONDS * sha256(tenant.encode()).digest()[0] / 256
        return [each.content for each in self._secrets if each.begin_seconds + waited <= now][-1]


class Places:
    """Counts what is in work by tenant. Used on the event loop only.

    One tenant alone may take all places. Who has less than its share by weight, among those that have any, finds one
    also where all are taken, as long as fewer than twice as many are: whoever is above its share gets none until enough
    of its own has ended. Of one tenant there are `max_of_key` at most; 0: any. `on_change` is told how many are
    taken, or given back: those below 0.
    """

    def __init__(
        self,
        num_places: int,
        max_of_key: int,
        clock: Callable[[], float],
        on_change: Callable[[int], None] = lambda _change: None,
    ) -> None:
        self.num_places = num_places
        """Of all tenants together."""
        self._max_of_key, self._clock = max_of_key, clock
        self._on_change = on_change
        self._taken = Counter[str]()
        self._weights: dict[str, int] = {}
        self._mean_seconds = 1.0  # for which a place is held

    @property
    def num_taken(self) -> int:
        """Return the places that are taken."""
        return self._taken.total()

    @contextmanager
    def hold(self, key: ApiKey) -> Iterator[Callable[[int], None]]:
        """Hold places, more by what is returned; raise InvalidFieldError if all are fewer, OverloadedError if taken."""
        begun_seconds, num_held = self._clock(), 0

        def add(count: int) -> None:
            nonlocal num_held
            self._check(key, count)
            self._taken[key.name] += count
            self._weights[key.name] = key.weight
            num_held += count
            self._on_change(count)

        add(1)
        try:
            yield add
        finally:
            self._mean_seconds += (self._clock() - begun_seconds - self._mean_seconds) / 16
            self._taken[key.name] -= num_held
            self._on_change(-num_held)
            if not self._taken[key.name]:
                del self._taken[key.name], self._weights[key.name]

    def _check(self, key: ApiKey, count: int) -> None:
        most, num_own, num_taken = self._max_of_key or self.num_places, self._taken[key.name], self.num_taken
        if count > min(most, self.num_places):
            raise InvalidFieldError("n", f"{count} generations at once: expected at most {most}")
        if self._max_of_key and num_own + count > most:
            text = f"{most} requests of this API key are in work already"
            raise self._refusal(text, "KEY_CONCURRENCY", num_own + count - most, num_own)
        if num_taken + count <= self.num_places:
            return
        total_weight = sum((self._weights | {key.name: key.weight}).values())
        share = math.ceil(self.num_places * key.weight / total_weight)
        if num_own + count > share or num_taken + count > 2 * self.num_places:
            text = f"{self.num_places} requests are in work already"
            raise self._refusal(text, "QUEUE_FULL", num_own + count - share, num_own or num_taken)

    def _refusal(self, text: str, reason: str, num_missing: int, num_running: int) -> OverloadedError:
        """Return a refusal until so many of those that run have ended, which end evenly."""
        seconds = math.ceil(self._mean_seconds * min(1.0, max(1, num_missing) / num_running))
        metadata = {RETRY_AFTER_SECONDS: str(max(1, seconds))}
        return OverloadedError(f"{text}; try again in {max(1, seconds)} s", reason=reason, metadata=metadata)


def _read(path: Path) -> Sequence[_Secret]:
    try:
        first, *later = _NEXT.split(path.read_bytes().strip())
        secrets = [_Secret(-math.inf, first)]
        for secret, _, moment in (line.partition(b" from=") for line in later):
            begin = datetime.fromisoformat(moment.strip().decode())
            secrets.append(_Secret(begin.replace(tzinfo=begin.tzinfo or UTC).timestamp(), secret))
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"tenant_secret_file: cannot read {path}: {error}") from error
    if min(len(each.content) for each in secrets) < _LEAST_CHARACTERS:
        raise ConfigurationError(f"tenant_secret_file: {path} has less than {_LEAST_CHARACTERS} characters")
    return sorted(secrets)
