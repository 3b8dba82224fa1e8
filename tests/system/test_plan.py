"""The ports of test clusters."""

from __future__ import annotations

from system.plan import free_ports


def test_no_port_is_given_twice_nor_the_one_after_it() -> None:
    """Who was given one may listen later, and several gateways count theirs from the first on."""
    ports = {free_ports(["a"])["a"] for _ in range(200)}

    assert len(ports) == 200
    assert ports.isdisjoint(port + 1 for port in ports)
