"""When tracing is on, and under which name."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from ipaddress import IPv4Address, IPv6Address

import pytest
from opentelemetry import propagate, trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.semconv.schemas import Schemas

import baton
from baton.rpc.trace_interceptors import server_interceptors
from baton.telemetry import tracing
from telemetry.span_exporting import forget_provider


@pytest.fixture(autouse=True)
def _no_provider(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Starts each test without a global provider and shuts down what it made."""
    forget_provider(monkeypatch)
    for variable in ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_SERVICE_NAME"):
        monkeypatch.delenv(variable, raising=False)
    yield
    tracing.shutdown_tracing()


def test_tracing_is_off_and_free_without_an_endpoint() -> None:
    """No provider, no interceptors."""
    tracing.configure_tracing("baton-router")

    assert not tracing.is_tracing()
    assert tuple(server_interceptors("127.0.0.1:1")) == ()


@pytest.mark.parametrize("variable", ["OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"])
def test_an_endpoint_turns_tracing_on(monkeypatch: pytest.MonkeyPatch, variable: str) -> None:
    """Either variable is enough; interceptors appear for every shape of call."""
    monkeypatch.setenv(variable, "http://127.0.0.1:9")

    tracing.configure_tracing("baton-router")

    provider = trace.get_tracer_provider()
    assert isinstance(provider, TracerProvider)
    assert provider.resource.attributes["service.name"] == "baton-router"
    assert len(server_interceptors("127.0.0.1:1")) == 1


@pytest.mark.parametrize(("variable", "value"), [("OTEL_SDK_DISABLED", "true"), ("OTEL_TRACES_EXPORTER", "none")])
def test_the_off_switches_of_opentelemetry_work(monkeypatch: pytest.MonkeyPatch, variable: str, value: str) -> None:
    """An endpoint does not override them."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv(variable, value)

    tracing.configure_tracing("baton-router")

    assert not tracing.is_tracing()


def test_the_service_name_of_the_environment_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    """OTEL_SERVICE_NAME is the operator's word."""
    monkeypatch.setenv("OTEL_SERVICE_NAME", "mine")

    assert tracing.service_resource("baton-router").attributes["service.name"] == "mine"


def test_the_sampler_of_the_environment_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """OTEL_TRACES_SAMPLER=always_off records nothing."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "always_off")

    tracing.configure_tracing("baton-router")

    assert not tracing.tracer().start_span("x").is_recording()


@pytest.mark.parametrize(("flag", "ratio", "is_recorded"), [("01", "0", True), ("00", "1", False), ("", "1", True)])
def test_a_clients_header_decides_and_else_the_ratio(
    monkeypatch: pytest.MonkeyPatch, flag: str, ratio: str, is_recorded: bool
) -> None:
    """`traceparent` names a trace that is, or is not, sampled; a request without one follows the ratio."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "parentbased_traceidratio")
    monkeypatch.setenv("OTEL_TRACES_SAMPLER_ARG", ratio)
    tracing.configure_tracing("baton-gateway")
    headers = {"traceparent": f"00-{'a' * 32}-{'b' * 16}-{flag}"} if flag else {}

    span = tracing.tracer().start_span("chat", propagate.extract(headers))

    assert span.is_recording() == is_recorded


def test_a_process_says_who_it_is() -> None:
    """Which version, and which of several; what its operator says wins over what the SDK finds."""
    resource = tracing.service_resource("baton-router")

    assert resource.attributes["service.version"] == baton.__version__
    assert resource.attributes["service.namespace"] == "baton"
    assert resource.attributes["service.instance.id"]
    assert resource.schema_url in {schema.value for schema in Schemas}


@pytest.mark.parametrize(
    ("address", "attributes"),
    [
        ("h:8", {"server.address": "h", "server.port": 8}),
        ("[::1]:8", {"server.address": "::1", "server.port": 8}),
        ("[::1]", {"server.address": "::1", "server.port": 80}),
        ("h", {"server.address": "h", "server.port": 80}),
        ("h:x", {"server.address": "h", "server.port": 80}),
        ("", {}),
    ],
)
def test_an_address_is_told_by_host_and_port(address: str, attributes: dict[str, object]) -> None:
    """Whatever a client wrote into `Host`."""
    assert tracing.server_attributes(address, default_port=80) == attributes


def test_a_listener_on_every_interface_is_told_by_the_name_of_its_machine() -> None:
    """Nobody calls 0.0.0.0."""
    for anywhere in (f"{IPv4Address(0)}:8", f"[{IPv6Address(0)}]:8"):
        assert tracing.named_address(anywhere) == f"{socket.gethostname()}:8"
    assert tracing.named_address("10.0.0.1:8") == "10.0.0.1:8"
