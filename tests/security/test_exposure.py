"""What a process refuses to open to other machines, and what it says of what it was told to."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from baton.agent.settings import AgentSettings
from baton.cache_index.settings import CacheIndexSettings
from baton.config.settings import load_settings
from baton.errors import ConfigurationError
from baton.gateway.settings import GatewaySettings
from baton.prefill.settings import PrefillSettings
from baton.router.settings import RouterSettings
from baton.security.exposure import is_loopback, warn_of_exposures

HOST = "192.0.2.1"


@pytest.fixture
def tls(tmp_path: Path) -> dict[str, str]:
    """Return the files of an identity."""
    files = {name: tmp_path / name for name in ("tls_cert_file", "tls_key_file", "tls_ca_file")}
    for file in files.values():
        file.touch()
    return {name: str(file) for name, file in files.items()}


@pytest.fixture
def model_dir(tmp_path: Path) -> str:
    """Return a folder that looks like a model's."""
    (tmp_path / "config.json").write_text("{}")
    return str(tmp_path)


@pytest.mark.parametrize("settings_class", [RouterSettings, CacheIndexSettings, PrefillSettings, AgentSettings])
def test_internal_listeners_beyond_loopback_demand_certificates(
    settings_class: Any, tls: dict[str, str], model_dir: str
) -> None:
    """Without them a process does not start, unless it is told that it shall."""
    own = {PrefillSettings: {"model_dir": model_dir}, AgentSettings: {"worker_role": "decode"}}.get(settings_class, {})

    with pytest.raises(ConfigurationError, match=f"host {HOST}: .* without a certificate: set tls_cert_file"):
        load_settings(settings_class, {"host": HOST, **own})

    assert load_settings(settings_class, {"host": HOST, **own, **tls}).exposures() == ()
    assert load_settings(settings_class, {"host": "::1", **own}).exposures() == ()
    assert len(load_settings(settings_class, {"host": HOST, **own, "insecure": "true"}).exposures()) == 1


def test_a_machine_that_joins_gets_its_certificate_first() -> None:
    """Nothing listens before."""
    assert load_settings(AgentSettings, {"host": HOST, "join_token": "t"}).exposures() == ()


MUTUAL = {"https_cert_file": "c", "https_key_file": "k", "client_ca_file": "a"}


@pytest.mark.parametrize(
    ("given", "doors"),
    [
        ({"http_host": "127.0.0.1", "grpc_host": "localhost"}, []),
        ({"http_host": HOST}, ["http_host .*in clear", "http_host .*may ask"]),
        ({"grpc_host": HOST}, ["grpc_host .*in clear", "grpc_host .*may ask"]),
        ({"http_host": HOST, "tls_ends_upstream": "true"}, ["http_host .*may ask"]),
        ({"http_host": HOST, "tls_ends_upstream": "true", "api_keys_file": "keys"}, []),
        ({"http_host": HOST, "https_cert_file": "c", "https_key_file": "k", "api_keys_file": "keys"}, []),
        ({"http_host": HOST, "grpc_host": HOST, **MUTUAL}, []),
        (
            {"http_host": HOST, "grpc_host": HOST, **MUTUAL, "grpc_tls": "false"},
            ["grpc_host .*in clear", "grpc_host .*may ask"],
        ),
    ],
)
def test_public_listeners_beyond_loopback_demand_tls_and_keys(given: dict[str, str], doors: list[str]) -> None:
    """TLS may end before them, at an Ingress."""
    flags = {"model_dir": ".", **given}
    if doors:
        with pytest.raises(
            ConfigurationError, match="; ".join(f"{door}[^;]*" for door in doors) + "; or pass --insecure"
        ):
            load_settings(GatewaySettings, flags)

    assert len(load_settings(GatewaySettings, {**flags, "insecure": "true"}).exposures()) == len(doors)


def test_what_is_open_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """At each start, as a warning."""
    with caplog.at_level(logging.WARNING):
        warn_of_exposures(load_settings(RouterSettings, {"host": HOST, "insecure": "true"}))
        warn_of_exposures(load_settings(RouterSettings, {}))

    assert [record.getMessage().split(":")[0] for record in caplog.records] == [f"insecure host {HOST}"]


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "::1", "[::1]", "localhost"])
def test_loopback_is_known_in_all_its_forms(host: str) -> None:
    """Only this machine reaches it."""
    assert is_loopback(host)
    assert not is_loopback(f"{host}.example")


def test_any_name_is_safe_where_a_page_has_no_key() -> None:
    """Host names are looked at (DNS rebinding) where whoever reaches the port may ask."""
    for given, is_safe in (
        ({}, False),
        ({"api_keys_file": "keys"}, True),
        ({"https_cert_file": "c", "https_key_file": "k"}, True),
    ):
        assert load_settings(GatewaySettings, {"model_dir": ".", **given}).is_safe_under_any_name == is_safe
