"""When tracing is on, and under which name."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from opentelemetry import propagate, trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.util._once import Once

from baton.rpc.trace_interceptors import client_interceptors, server_interceptors
from baton.telemetry import tracing


@pytest.fixture(autouse=True)
def _no_provider(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Starts each test without a global provider and shuts down what it made."""
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", None)
    monkeypatch.setattr(trace, "_TRACER_PROVIDER_SET_ONCE", Once())
    for variable in ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_SERVICE_NAME"):
        monkeypatch.delenv(variable, raising=False)
    yield
    tracing.shutdown_tracing()


def test_tracing_is_off_and_free_without_an_endpoint() -> None:
    """No provider, no interceptors."""
    tracing.configure_tracing("baton-router")

    assert not tracing.is_tracing()
    assert tuple(client_interceptors()) == ()
    assert tuple(server_interceptors()) == ()


@pytest.mark.parametrize("variable", ["OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"])
def test_an_endpoint_turns_tracing_on(monkeypatch: pytest.MonkeyPatch, variable: str) -> None:
    """Either variable is enough; interceptors appear for every shape of call."""
    monkeypatch.setenv(variable, "http://127.0.0.1:9")

    tracing.configure_tracing("baton-router")

    provider = trace.get_tracer_provider()
    assert isinstance(provider, TracerProvider)
    assert provider.resource.attributes["service.name"] == "baton-router"
    assert len(client_interceptors()) == 4
    assert len(server_interceptors()) == 1


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


def test_a_server_span_is_named_after_its_method() -> None:
    """Service and method are attributes as well."""
    method = "/baton.internal.v1.RouterService/Place"

    assert tracing.server_span(method) == "baton.internal.v1.RouterService/Place"
    assert tracing.rpc_attributes(method) == {
        "rpc.system": "grpc",
        "rpc.service": "baton.internal.v1.RouterService",
        "rpc.method": "Place",
    }
