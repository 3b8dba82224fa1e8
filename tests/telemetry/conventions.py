"""OpenTelemetry's conventions, as its package `opentelemetry-semantic-conventions` and their text have them."""

from __future__ import annotations

import pkgutil
from collections.abc import Iterable
from functools import cache
from importlib import import_module

from opentelemetry.semconv import attributes
from opentelemetry.semconv._incubating import attributes as incubating

_SERVER = {"server.address", "server.port"}
HTTP_SERVER = _SERVER | {
    *("http.request.method", "http.route", "http.response.status_code", "url.path", "url.scheme"),
    *("network.protocol.version", "user_agent.original"),
}
"""What spans of an HTTP server have: all that is required, and what is recommended but for addresses of clients."""
RPC = _SERVER | {"rpc.system.name", "rpc.method", "rpc.response.status_code"}
"""What both spans of a call have."""
FORMER_RPC = {"rpc.system", "rpc.service", "rpc.grpc.status_code"}
"""The same as it was called until 2026."""
OPERATION = _SERVER | {
    *("gen_ai.operation.name", "gen_ai.provider.name", "gen_ai.request.model", "gen_ai.request.stream"),
    *("gen_ai.request.max_tokens", "gen_ai.request.temperature"),
    *("gen_ai.response.id", "gen_ai.response.model", "gen_ai.response.finish_reasons"),
    *("gen_ai.response.time_to_first_chunk", "gen_ai.usage.input_tokens", "gen_ai.usage.output_tokens"),
    "gen_ai.usage.cache_read.input_tokens",
}
"""What spans of an operation have whose request gives a limit and a temperature."""
RESOURCE = {"service.name", "service.namespace", "service.version", "service.instance.id"}
"""What a process says of itself."""


@cache
def registry() -> frozenset[str]:
    """Return the names of all attributes."""
    modules = [
        import_module(f"{package.__name__}.{module.name}")
        for package in (attributes, incubating)
        for module in pkgutil.iter_modules(package.__path__)
    ]
    constants = (value for module in modules for name, value in vars(module).items() if name.isupper())
    return frozenset(value for value in constants if isinstance(value, str))


def strangers(names: Iterable[str]) -> set[str]:
    """Return the names that are neither of the conventions nor Baton's own."""
    return {name for name in names if not name.startswith("baton.")} - registry()
