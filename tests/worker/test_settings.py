"""Settings that prefill and decode nodes share."""

from __future__ import annotations

import pytest

from baton.decode.settings import DecodeSettings
from baton.demo import checkpoint_dir


@pytest.mark.parametrize(
    ("advertise_address", "advertised"),
    [
        ("", "127.0.0.1:8030"),
        ("10.2.3.4", "10.2.3.4:8030"),
        ("10.2.3.4:9000", "10.2.3.4:9000"),
        ("fd00::12", "[fd00::12]:8030"),
        ("[fd00::12]:9000", "[fd00::12]:9000"),
    ],
)
def test_a_node_is_advertised_by_host_or_by_host_and_port(advertise_address: str, advertised: str) -> None:
    """The last group of an IPv6 address is no port."""
    settings = DecodeSettings(model_dir=checkpoint_dir(), advertise_address=advertise_address)

    assert settings.advertised(8030) == advertised
