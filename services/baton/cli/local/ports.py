"""TCP ports: whether one is free, and a set of free ones."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from baton.errors import ConfigurationError


class WantedPort(NamedTuple):
    """A port that must be free, and how the user changes it."""

    port: int
    what: str
    """E.g. "HTTP"."""
    change_with: str
    """E.g. "--http-port or BATON_HTTP_PORT"."""


def check_ports_are_free(host: str, wanted: Sequence[WantedPort]) -> None:
    """Check that nobody listens on the ports; raise ConfigurationError saying how to change one that is taken."""
    owners: dict[int, WantedPort] = {}
    for item in wanted:
        if item.port in owners:
            raise ConfigurationError(f"port {item.port} is wanted twice: {owners[item.port].what} and {item.what}")
        owners[item.port] = item
        try:
            _bind(host, item.port).close()
        except OSError as error:
            reason = error.strerror or str(error)
            raise ConfigurationError(
                f"port {item.port} ({item.what}) on {host} cannot be used: {reason}{_free_port(host)}; "
                f"choose another with {item.change_with}"
            ) from error


def _free_port(host: str) -> str:
    """Return which port is free instead; nothing where the address is what is wrong."""
    try:
        with _bind(host, 0) as bound:
            return f"; {bound.getsockname()[1]} is free"
    except OSError:
        return ""


def free_ports(host: str, keys: Sequence[str], preferred: Mapping[str, int]) -> Mapping[str, int]:
    """Return a port free on `host` per key, all different, `preferred` ones, by key, where they are free."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(_bind_preferred(host, preferred.get(key, 0))) for key in keys]
        return {key: int(bound.getsockname()[1]) for key, bound in zip(keys, sockets, strict=True)}


def _bind_preferred(host: str, port: int) -> socket.socket:
    try:
        return _bind(host, port)
    except (OSError, OverflowError):
        return _bind(host, 0)


def _bind(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    bound = socket.socket(family, socket.SOCK_STREAM)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind((host, port))
    except BaseException:
        bound.close()
        raise
    return bound
