"""The slow link of other tests: what it does when nobody is at its other end."""

from __future__ import annotations

import socket

from system.plan import HOST, free_ports
from system.slow_link import SlowLink

TIMEOUT_SECONDS = 60.0


def test_a_link_whose_other_end_is_gone_closes_the_connection_and_goes_on() -> None:
    """A node that has been killed before its peer, which calls once more: no thread of the link dies of it."""
    target = f"{HOST}:{free_ports(['closed'])['closed']}"
    with SlowLink(lambda: target) as link, socket.create_server((HOST, 0)) as server:
        address = (HOST, int(link.address.rpartition(":")[2]))
        with socket.create_connection(address, TIMEOUT_SECONDS) as refused:
            assert refused.recv(1) == b""
        target = f"{HOST}:{server.getsockname()[1]}"
        server.settimeout(TIMEOUT_SECONDS)
        with socket.create_connection(address, TIMEOUT_SECONDS) as client, server.accept()[0] as peer:
            peer.settimeout(TIMEOUT_SECONDS)
            client.sendall(b"a")
            assert peer.recv(1) == b"a"
