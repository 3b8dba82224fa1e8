"""Routers on the local network: announced and found by multicast DNS (RFC 6762, RFC 6763).

Anybody on the network can announce anything: who finds a router believes it only for its certificate.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from baton.errors import ConfigurationError, UnavailableError
from baton.installation import install_line
from baton.rpc.server import host_port

if TYPE_CHECKING:
    from zeroconf.asyncio import AsyncZeroconf

log = logging.getLogger(__name__)

SERVICE_TYPE = "_baton._tcp.local."
"""Under which a router's join service is announced."""

_RESOLVE_MILLISECONDS = 3_000


@asynccontextmanager
async def announced(host: str, port: int, *, name: str = "") -> AsyncIterator[None]:
    """Announce a router's join service on the network of one of this machine's addresses, as long as the context lasts.

    `host` is this machine's IPv4 address on that network; `name` tells routers apart, empty: host name and port. Raises
    ConfigurationError if zeroconf is not installed, or the address is none of this machine's.
    """
    from zeroconf import ServiceInfo

    label = (name or f"{socket.gethostname()} {port}").replace(".", "-")[:63]
    info = ServiceInfo(
        SERVICE_TYPE,
        f"{label}.{SERVICE_TYPE}",
        addresses=[_packed(host)],
        port=port,
        server=f"baton-{host.replace('.', '-')}.local.",
    )
    zeroconf = _open([host])
    try:
        announcing = asyncio.ensure_future(await zeroconf.async_register_service(info, allow_name_change=True))
        log.info("router_announced service=%s address=%s:%d", SERVICE_TYPE, host, port)
        yield
        announcing.cancel()
    finally:
        await zeroconf.async_unregister_all_services()
        await zeroconf.async_close()


async def find_router(timeout_seconds: float, *, interfaces: list[str] | None = None) -> str:
    """Return host:port of the join service of the router that answers first.

    Asks on the networks of `interfaces`, addresses of this machine; None: on all. Raises UnavailableError if none
    answers in time, ConfigurationError if zeroconf is not installed.
    """
    zeroconf = _open(interfaces)
    from zeroconf import ServiceStateChange
    from zeroconf.asyncio import AsyncServiceBrowser

    names: asyncio.Queue[str] = asyncio.Queue()

    def on_change(*, name: str, state_change: ServiceStateChange, **_: object) -> None:
        if state_change is not ServiceStateChange.Removed:
            names.put_nowait(name)

    browser = AsyncServiceBrowser(zeroconf.zeroconf, SERVICE_TYPE, handlers=[on_change])
    try:
        async with asyncio.timeout(timeout_seconds):
            return await _first_resolved(zeroconf, names)
    except TimeoutError:
        raise UnavailableError(f"no router answered as {SERVICE_TYPE} within {timeout_seconds:g} s") from None
    finally:
        await browser.async_cancel()
        await zeroconf.async_close()


async def _first_resolved(zeroconf: AsyncZeroconf, names: asyncio.Queue[str]) -> str:
    while True:
        name = await names.get()
        info = await zeroconf.async_get_service_info(SERVICE_TYPE, name, _RESOLVE_MILLISECONDS)
        if info is None:
            names.put_nowait(name)  # its answer was lost or is late, and the browser names it only once
        addresses = info.parsed_addresses() if info else []
        if info is not None and info.port and addresses:
            return host_port(addresses[0], info.port)


def _open(interfaces: list[str] | None) -> AsyncZeroconf:
    try:
        from zeroconf import InterfaceChoice
        from zeroconf.asyncio import AsyncZeroconf
    except ModuleNotFoundError as error:
        raise ConfigurationError(f"finding routers needs zeroconf: {install_line('agent')}") from error
    try:
        return AsyncZeroconf(interfaces=InterfaceChoice.All if interfaces is None else interfaces)
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"multicast DNS on {interfaces or 'all interfaces'}: {error}") from error


def _packed(host: str) -> bytes:
    try:
        return socket.inet_aton(host)
    except OSError as error:
        raise ConfigurationError(f"announce_address: expected an IPv4 address, got {host!r}") from error
