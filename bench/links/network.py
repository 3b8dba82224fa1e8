"""Hosts on this machine, each a network namespace behind a network card of a given rate. Linux, root, iproute2."""

from __future__ import annotations

import fcntl
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PAYLOAD_SHARE = 1448 / 1514
"""Payload of a full packet: Ethernet, IP and TCP with timestamps take the rest of what the shaper counts."""
_NAMESPACES = Path("/run/netns")
_SWITCH = "baton-switch"
_KERNEL_TICKS_PER_SECOND = 250
_QUEUE_MILLISECONDS = 20
_LOCK_FILE = Path(tempfile.gettempdir()) / "baton-network.lock"


def address_of(host: int) -> str:
    """Return a host's address; host 0 is where this process runs."""
    return f"10.77.0.{host + 1}"


NEAR_ADDRESS, FAR_ADDRESS = address_of(0), address_of(1)


class Network:
    """Hosts at one switch. Made by `network_of`."""

    def set_rate(self, host: int, bits_per_second: float, *, inwards: bool = False) -> None:
        """Shape what a host sends, or receives, with a token bucket. Its burst is what the kernel's clock needs."""
        burst_bytes = max(16_000, int(bits_per_second / 8 / _KERNEL_TICKS_PER_SECOND * 1.5))
        shape = f"tbf rate {int(bits_per_second)}bit burst {burst_bytes} latency {_QUEUE_MILLISECONDS}ms"
        place = ["ip", "netns", "exec", _SWITCH] if inwards else self.command(host, [])
        device = f"baton-port{host}" if inwards else f"baton-card{host}"
        _run(" ".join([*place, f"tc qdisc replace dev {device} root {shape}"]))

    def command(self, host: int, command: list[str]) -> list[str]:
        """Return a command that runs `command` on a host."""
        return ["ip", "netns", "exec", f"baton-host{host}", *command] if host else command


@contextmanager
def network_of(num_far_hosts: int = 1) -> Iterator[Network]:
    """Make hosts 1 to `num_far_hosts` and a switch between them and this one, waiting for other processes' end.

    Raises CalledProcessError where it is forbidden.
    """
    with _LOCK_FILE.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # until the file is closed; a second network of these names would end it
        _remove()
        try:
            _make(num_far_hosts)
            yield Network()
        finally:
            _remove()


def _make(num_far_hosts: int) -> None:
    """The switch has a namespace of its own: no firewall of this host stands between the others."""
    _run(f"ip netns add {_SWITCH}")
    _run(f"ip -n {_SWITCH} link add baton-bridge type bridge")
    _run(f"ip -n {_SWITCH} link set baton-bridge up")
    for host in range(num_far_hosts + 1):
        card, port, within = f"baton-card{host}", f"baton-port{host}", f"-n baton-host{host}" if host else ""
        if host:
            _run(f"ip netns add baton-host{host}")
            _run(f"ip {within} link set lo up")
        _run(f"ip {within} link add {card} type veth peer name {port} netns {_SWITCH}")
        _run(f"ip {within} addr add {address_of(host)}/24 dev {card}")
        _run(f"ip {within} link set {card} up")
        _run(f"ip -n {_SWITCH} link set {port} master baton-bridge")
        _run(f"ip -n {_SWITCH} link set {port} up")


def _remove() -> None:
    """Remove what there is. The link first: deleting a namespace would remove it only some time later."""
    subprocess.run(["ip", "link", "del", "baton-card0"], capture_output=True, check=False)
    for namespace in (_SWITCH, *(path.name for path in _NAMESPACES.glob("baton-host*"))):
        subprocess.run(["ip", "netns", "del", namespace], capture_output=True, check=False)


def _run(command: str) -> None:
    subprocess.run(command.split(), check=True, capture_output=True, text=True)
