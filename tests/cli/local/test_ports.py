"""Free and taken ports."""

from __future__ import annotations

import socket

import pytest

from baton.cli.local.ports import WantedPort, check_ports_are_free, free_ports
from baton.errors import ConfigurationError
from system import plan


def test_a_taken_port_is_named_with_the_way_to_change_it() -> None:
    """The message has the number, what it is for, and the flag."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        wanted = WantedPort(port, "HTTP", "--http-port or BATON_HTTP_PORT")

        with pytest.raises(ConfigurationError, match=rf"port {port} \(HTTP\) .* --http-port or BATON_HTTP_PORT"):
            check_ports_are_free("127.0.0.1", [wanted])


def test_one_port_for_two_purposes_is_refused() -> None:
    """HTTP and gRPC cannot share a port."""
    wanted = [WantedPort(18999, "HTTP", "--http-port"), WantedPort(18999, "gRPC", "--grpc-port")]

    with pytest.raises(ConfigurationError, match="port 18999 is wanted twice: HTTP and gRPC"):
        check_ports_are_free("127.0.0.1", wanted)


def test_free_ports_are_different_and_free() -> None:
    """Each key gets its own."""
    ports = free_ports("127.0.0.1", ["a", "b", "c"], {})

    assert len(set(ports.values())) == 3
    check_ports_are_free("127.0.0.1", [WantedPort(port, key, "-") for key, port in ports.items()])


def test_a_preferred_port_is_taken_only_where_it_is_free() -> None:
    """A second `baton up` beside the first gets another router port; one past the last port does not break it."""
    free = plan.free_ports(["a"])["a"]  # which no other process of the test run takes meanwhile
    assert free_ports("127.0.0.1", ["a"], {"a": free}) == {"a": free}

    with socket.create_server(("127.0.0.1", 0)) as server:
        taken = server.getsockname()[1]
        assert free_ports("127.0.0.1", ["a"], {"a": taken})["a"] != taken
    assert free_ports("127.0.0.1", ["a"], {"a": 65_545})["a"] <= 65_535
