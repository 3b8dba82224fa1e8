"""The addresses of this machine among which a cluster chooses: a cable before Wi-Fi, and nothing virtual."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Sequence
from ipaddress import IPv4Interface, ip_address
from pathlib import Path
from typing import NamedTuple

import psutil

from baton.errors import ConfigurationError, UnavailableError

_VIRTUAL = ("lo", "docker", "br-", "veth", "virbr", "cni", "flannel", "tun", "tap", "utun", "wg", "tailscale", "awdl")
"""How interfaces begin that lead to no other machine's engine, or not by the shortest way."""


class LanAddress(NamedTuple):
    """An address of this machine, on an interface such as en0, whose own word its rate is (0: it says nothing)."""

    interface: str
    network: IPv4Interface
    is_wireless: bool
    bits_per_second: float

    @property
    def host(self) -> str:
        """Return the address alone."""
        return str(self.network.ip)

    @property
    def advice(self) -> str:
        """Return what would be faster, a line; empty: nothing."""
        remedy = "plug in a cable: KV goes over it many times as fast, and its pace is steady"
        return f"{self.host} is Wi-Fi ({self.interface}): {remedy}" if self.is_wireless else ""


def lan_addresses() -> Sequence[LanAddress]:
    """Return this machine's IPv4 addresses on networks: cables first, of these the fastest first."""
    states, wireless = psutil.net_if_stats(), _wireless_interfaces()
    found = [
        LanAddress(name, network, name in wireless, states[name].speed * 1e6)
        for name, addresses in psutil.net_if_addrs().items()
        if name in states and states[name].isup and not name.startswith(_VIRTUAL)
        for each in addresses
        if each.family == socket.AF_INET
        and not (network := IPv4Interface(f"{each.address}/{each.netmask or 32}")).is_loopback
    ]
    return sorted(found, key=lambda each: (each.network.is_link_local, each.is_wireless, -each.bits_per_second))


def best_address(addresses: Sequence[LanAddress], *, route: str = "", towards: str = "") -> LanAddress:
    """Return the address under which others are to reach this machine: of several, the best first.

    `addresses`: of this machine. `route`: which of them the kernel takes towards another machine; empty: that does not
    matter. `towards`: address of that machine; a cable into its network wins over Wi-Fi, whatever the kernel takes.
    Raises ConfigurationError if there is none.
    """
    near = [each for each in addresses if towards and ip_address(towards) in each.network.network]
    routed = [each for each in addresses if each.host == route]
    if found := next(iter([*near, *routed] if route else addresses), None):
        return found
    raise ConfigurationError(
        f"this machine has no address {f'towards {towards}' if towards else 'on a network'}: connect it, or name one"
    )


def route_towards(host: str) -> str:
    """Return which address the kernel takes towards a host, or raise UnavailableError; nothing is sent."""
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
            asked.connect((host, 9))
            return str(asked.getsockname()[0])
    except OSError as error:
        raise UnavailableError(f"no way to {host}: {error.strerror or error}") from error


def _wireless_interfaces() -> frozenset[str]:
    if sys.platform != "darwin":
        return frozenset(path.parent.name for path in Path("/sys/class/net").glob("*/wireless"))
    try:
        told = subprocess.run(
            ("/usr/sbin/networksetup", "-listallhardwareports"), capture_output=True, text=True, timeout=5, check=True
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return frozenset()
    return wireless_of_macos(told)


def wireless_of_macos(told: str) -> frozenset[str]:
    """Return the Wi-Fi interfaces among what `networksetup -listallhardwareports` prints."""
    lines = [line.partition(": ")[2] for line in told.splitlines() if line.startswith(("Hardware Port", "Device"))]
    return frozenset(device for port, device in zip(lines[::2], lines[1::2], strict=False) if port == "Wi-Fi")
