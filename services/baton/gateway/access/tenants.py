"""Tenants: the owners of API keys, whose prefix caches are apart, so that neither hits nor times tell of each other."""

from __future__ import annotations

import hmac
from pathlib import Path

from baton.errors import ConfigurationError

_LEAST_CHARACTERS = 32
_PUBLIC_SECRET = "baton tenants"  # noqa: S105 - none: where there is no file, owners are told apart by their names alone


class TenantSalts:
    """Makes the salt of a tenant's cache: equal in every gateway of a deployment, for all keys of one owner.

    Args:
        secret_file: Holds the deployment's secret; None: salts follow from names, which no client can use either, for
            its own name is in its own.

    Raises:
        ConfigurationError: If the file cannot be read, or is too short.
    """

    def __init__(self, secret_file: Path | None) -> None:
        self._secret = _read(secret_file) if secret_file else _PUBLIC_SECRET.encode()

    def salt_of(self, tenant: str, cache_salt: str) -> str:
        """Return what separates the cache of a request.

        Args:
            tenant: Owner of its API key; empty where there are no keys: then all are one.
            cache_salt: What the client asks for, within its own cache.
        """
        if not tenant:
            return cache_salt
        return hmac.digest(self._secret, f"{tenant}\0{cache_salt}".encode(), "sha256").hex()


def _read(path: Path) -> bytes:
    try:
        secret = path.read_bytes().strip()
    except OSError as error:
        raise ConfigurationError(f"tenant_secret_file: cannot read {path}: {error}") from error
    if len(secret) < _LEAST_CHARACTERS:
        raise ConfigurationError(f"tenant_secret_file: {path} has less than {_LEAST_CHARACTERS} characters")
    return secret
