"""Names under which a gateway may be asked: none that a stranger's page could have pointed at it (DNS rebinding).

A browser lets a page talk to the server that its own name stands for, and the page's owner says which that is. The name
is in the `Host` header: those that nobody can register are taken, addresses, and what the gateway is told to be called.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Sequence
from functools import lru_cache
from ipaddress import ip_address
from pathlib import Path

_ANY = "*"
_PRIVATE_SUFFIXES = (".localhost", ".local", ".internal", ".svc", ".home.arpa")
"""Ends of names that no public registry gives away."""
_PORT = re.compile(r":[0-9]*$")
_MOST_KNOWN = 1024


class Hosts:
    """The names that are taken.

    Args:
        names: Beside those of this machine and its networks, e.g. "llm.example.com", "*.example.com", or "*" for any.
        own_name: Of this machine.
        resolver_file: Says under which domains this machine looks for names; in a pod, where its cluster has Services.
    """

    def __init__(
        self, names: Sequence[str], *, own_name: str | None = None, resolver_file: Path = Path("/etc/resolv.conf")
    ) -> None:
        own_name = socket.gethostname() if own_name is None else own_name
        self._names = frozenset(_bare(name) for name in (*names, own_name))
        services = _service_domains(resolver_file)
        self._suffixes = (*_PRIVATE_SUFFIXES, *services, *(name[1:] for name in self._names if name.startswith("*.")))
        self.is_allowed = lru_cache(_MOST_KNOWN)(self._is_allowed)
        """Returns whether a `Host` header names this gateway; empty: the client is too old to name any."""

    def _is_allowed(self, host: str) -> bool:
        name = _bare(host)
        if "." not in name and ":" not in name:
            return True  # a name without a domain is the network's own
        try:
            ip_address(name.removeprefix("[").removesuffix("]"))
        except ValueError:
            return name in self._names or _ANY in self._names or name.endswith(self._suffixes)
        return True


def _service_domains(resolver_file: Path) -> Sequence[str]:
    """Return the ends of names of the cluster's Services beside .svc, e.g. ".svc.k8s.example.com"."""
    try:
        words = resolver_file.read_text("utf-8").lower().split()
    except (OSError, UnicodeDecodeError):
        return ()
    return tuple(f".{word.rstrip('.')}" for word in words if word.startswith("svc."))


def _bare(host: str) -> str:
    """Return a host without its port; an IPv6 address without brackets has none."""
    name = _PORT.sub("", host) if host.count(":") == 1 or "]:" in host else host
    return name.lower().rstrip(".")
