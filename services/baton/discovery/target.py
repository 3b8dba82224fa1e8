"""How a setting names a service: fixed addresses, or a Kubernetes Service whose pods are followed."""

from __future__ import annotations

import re
from dataclasses import dataclass

from baton.errors import ConfigurationError

_SCHEME = "kubernetes://"
_NAME = r"[a-z0-9]([a-z0-9-]*[a-z0-9])?"
_SERVICE = re.compile(rf"(?P<service>{_NAME})(\.(?P<namespace>{_NAME}))?:(?P<port>{_NAME})")


@dataclass(frozen=True, slots=True)
class FixedTarget:
    """Addresses that do not change."""

    addresses: frozenset[str]
    """host:port each."""


@dataclass(frozen=True, slots=True)
class ServiceTarget:
    """The pods behind a Kubernetes Service."""

    service: str
    namespace: str
    """Its namespace; empty: that of this pod."""
    port: str
    """Name of a port of the Service, or number of the pods' port."""


def parse_target(text: str) -> FixedTarget | ServiceTarget:
    """Return what a setting names: `host:port[,host:port]` or `kubernetes://SERVICE[.NAMESPACE]:PORT`.

    Raises:
        ConfigurationError: If it is neither.
    """
    if text.startswith(_SCHEME):
        match = _SERVICE.fullmatch(text.removeprefix(_SCHEME))
        if match is None:
            raise ConfigurationError(f"{text}: expected {_SCHEME}SERVICE[.NAMESPACE]:PORT, PORT a name or a number")
        return ServiceTarget(match["service"], match["namespace"] or "", match["port"])
    addresses = frozenset(part.strip() for part in text.split(",") if part.strip())
    wrong = [address for address in addresses if not re.search(r":[0-9]+$", address)]
    if wrong or not addresses:
        raise ConfigurationError(f"{text!r}: expected host:port[,host:port] or {_SCHEME}SERVICE[.NAMESPACE]:PORT")
    return FixedTarget(addresses)
