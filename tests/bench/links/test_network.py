"""Hosts behind network cards on this machine. Needs root and iproute2."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from bench.links.network import PAYLOAD_SHARE, Network, address_of, network_of

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0 or shutil.which("ip") is None, reason="needs root and iproute2"),
    pytest.mark.xdist_group("network"),
]

MEGABIT = 1e6
NUM_BYTES = 2_000_000
PORT = 9000
SENDER = """
import socket, sys, time
connection = socket.create_connection((sys.argv[1], int(sys.argv[2])))
started = time.perf_counter()
connection.sendall(bytes(int(sys.argv[3])))
connection.shutdown(socket.SHUT_WR)
connection.recv(1)
print(time.perf_counter() - started)
"""
RECEIVER = """
import socket, sys
listener = socket.create_server((sys.argv[1], int(sys.argv[2])))
print("listening", flush=True)
connection = listener.accept()[0]
while connection.recv(1 << 16):
    pass
"""


@pytest.fixture(scope="module")
def network() -> Iterator[Network]:
    """Return a network of this host and two others; the first sends, the second receives slowly."""
    with ExitStack() as stack:
        try:
            made = stack.enter_context(network_of(2))
        except subprocess.CalledProcessError as error:
            pytest.skip(f"namespaces are forbidden here: {error.stderr}")
        made.set_rate(1, 80 * MEGABIT)
        made.set_rate(2, 40 * MEGABIT, inwards=True)
        yield made
    left = subprocess.run(["ip", "netns", "list"], check=True, capture_output=True, text=True).stdout
    assert "baton-host" not in left


@pytest.mark.parametrize(
    ("sender", "receiver", "megabits"),
    [(1, 0, 80), (1, 2, 40), (0, 2, 40), (2, 1, None)],
    ids=["sending", "both", "receiving", "neither"],
)
def test_a_card_carries_what_it_was_given(network: Network, sender: int, receiver: int, megabits: int | None) -> None:
    """The slower of the two cards decides, each way has a rate of its own, and far hosts reach each other."""
    listening = network.command(receiver, [sys.executable, "-c", RECEIVER, address_of(receiver), str(PORT)])
    sending = network.command(sender, [sys.executable, "-c", SENDER, address_of(receiver), str(PORT), str(NUM_BYTES)])
    with subprocess.Popen(listening, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        seconds = float(subprocess.run(sending, check=True, capture_output=True, text=True, timeout=60).stdout)

    if megabits is None:
        assert seconds < 8 * NUM_BYTES / (80 * MEGABIT)
    else:
        assert seconds == pytest.approx(8 * NUM_BYTES / (megabits * MEGABIT * PAYLOAD_SHARE), rel=0.2)
