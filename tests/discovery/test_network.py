"""Which of a machine's addresses others are told."""

from __future__ import annotations

from ipaddress import IPv4Interface

import pytest

from baton.discovery.network import LanAddress, best_address, lan_addresses, wireless_of_macos
from baton.errors import ConfigurationError

WIFI = LanAddress("en0", IPv4Interface("192.168.1.7/24"), is_wireless=True, bits_per_second=0)
CABLE = LanAddress("en5", IPv4Interface("192.168.1.8/24"), is_wireless=False, bits_per_second=1e9)
OTHER = LanAddress("en6", IPv4Interface("10.0.0.8/24"), is_wireless=False, bits_per_second=1e10)


def test_a_cable_into_the_routers_network_wins_over_the_kernels_choice() -> None:
    """Wi-Fi and cable are often on one network, and Wi-Fi came up first."""
    assert best_address([CABLE, WIFI], route="192.168.1.7", towards="192.168.1.1") is CABLE


def test_a_cable_elsewhere_is_of_no_use() -> None:
    """Wi-Fi it is then, with a line about it."""
    found = best_address([OTHER, WIFI], route="192.168.1.7", towards="192.168.1.1")

    assert found is WIFI
    assert found.advice.startswith("192.168.1.7 is Wi-Fi (en0): plug in a cable")
    assert OTHER.advice == ""


def test_beyond_all_networks_the_kernel_chooses() -> None:
    """The router is behind a gateway."""
    assert best_address([OTHER, CABLE, WIFI], route="192.168.1.8", towards="172.16.0.1") is CABLE


def test_a_machine_without_a_network_is_told() -> None:
    """Here, and towards a router."""
    with pytest.raises(ConfigurationError, match="no address on a network: connect it"):
        best_address([])
    with pytest.raises(ConfigurationError, match=r"no address towards 172\.16\.0\.1"):
        best_address([CABLE], route="127.0.0.1", towards="172.16.0.1")


def test_loopback_is_none_of_them() -> None:
    """Nor is what is down."""
    assert all(not each.network.is_loopback for each in lan_addresses())


def test_macos_says_which_is_wifi() -> None:
    """By its port's name."""
    told = (
        "\nHardware Port: Ethernet\nDevice: en5\nEthernet Address: 1\n\nHardware Port: Wi-Fi\nDevice: en0\nEther: 2\n"
    )

    assert wireless_of_macos(told) == {"en0"}
