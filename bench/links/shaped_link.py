"""A second host on this machine: a network namespace behind a link of a given rate. Linux, root, iproute2."""

from __future__ import annotations

import fcntl
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

NAMESPACE = "baton-far"
NEAR_ADDRESS = "10.77.0.1"
FAR_ADDRESS = "10.77.0.2"
PAYLOAD_SHARE = 1448 / 1514
"""Payload of a full packet: Ethernet, IP and TCP with timestamps take the rest of what the shaper counts."""
_NEAR_DEVICE = "baton-near0"
_FAR_DEVICE = "baton-far0"
_KERNEL_TICKS_PER_SECOND = 250
_QUEUE_MILLISECONDS = 20
_LOCK_FILE = Path(tempfile.gettempdir()) / "baton-shaped-link.lock"


@dataclass(frozen=True, slots=True)
class ShapedLink:
    """A link between this namespace (NEAR_ADDRESS) and another (FAR_ADDRESS)."""

    def set_rate(self, bits_per_second: float) -> None:
        """Shape what the far host sends with a token bucket. Its burst is what the kernel's clock needs, no more."""
        burst_bytes = max(16_000, int(bits_per_second / 8 / _KERNEL_TICKS_PER_SECOND * 1.5))
        shape = f"tbf rate {int(bits_per_second)}bit burst {burst_bytes} latency {_QUEUE_MILLISECONDS}ms"
        _run(f"ip netns exec {NAMESPACE} tc qdisc replace dev {_FAR_DEVICE} root {shape}")

    def far_command(self, command: list[str]) -> list[str]:
        """Return a command that runs `command` on the far host."""
        return ["ip", "netns", "exec", NAMESPACE, *command]


@contextmanager
def shaped_link() -> Iterator[ShapedLink]:
    """Make namespace and link, waiting for other processes' end; raise CalledProcessError where it is forbidden."""
    with _LOCK_FILE.open("w") as lock:
        fcntl.flock(
            lock, fcntl.LOCK_EX
        )  # until the file is closed; a second link of the same names would end the first
        yield from _made_link()


def _made_link() -> Iterator[ShapedLink]:
    _remove()
    try:
        _run(f"ip netns add {NAMESPACE}")
        _run(f"ip link add {_NEAR_DEVICE} type veth peer name {_FAR_DEVICE} netns {NAMESPACE}")
        _run(f"ip addr add {NEAR_ADDRESS}/30 dev {_NEAR_DEVICE}")
        _run(f"ip link set {_NEAR_DEVICE} up")
        _run(f"ip -n {NAMESPACE} addr add {FAR_ADDRESS}/30 dev {_FAR_DEVICE}")
        _run(f"ip -n {NAMESPACE} link set {_FAR_DEVICE} up")
        _run(f"ip -n {NAMESPACE} link set lo up")
        yield ShapedLink()
    finally:
        _remove()


def _remove() -> None:
    """Remove what there is. The link first: deleting the namespace would remove it only some time later."""
    subprocess.run(["ip", "link", "del", _NEAR_DEVICE], capture_output=True, check=False)
    subprocess.run(["ip", "netns", "del", NAMESPACE], capture_output=True, check=False)


def _run(command: str) -> None:
    subprocess.run(command.split(), check=True, capture_output=True, text=True)
