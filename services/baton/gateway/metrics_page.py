"""/metrics on a port of its own: of several processes that share their port, each must be scraped by itself."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from baton.gateway.api.errors import ApiError
from baton.gateway.api.openai.errors import error_body, http_error_body
from baton.gateway.http.connection import HttpLimits
from baton.gateway.http.messages import HttpRequest
from baton.gateway.http.response import HttpResponse
from baton.gateway.http.server import HttpServer
from baton.gateway.settings import GatewaySettings
from baton.telemetry.prometheus import Scrape, content_type

_MAX_BODY_BYTES = 1 << 10
"""Nobody sends a body to it."""


@asynccontextmanager
async def metrics_page(settings: GatewaySettings, scrape: Scrape) -> AsyncIterator[None]:
    """Serve this process's metrics, if a port is set for them, for as long as the context lasts.

    Raises:
        ConfigurationError: If the port cannot be bound.
    """

    async def answer(request: HttpRequest, response: HttpResponse) -> None:
        if (request.method, request.path) == ("GET", "/metrics"):
            accept = request.headers.get("accept", "")
            response.send(200, scrape.text(accept), headers={"content-type": content_type(accept)})
        else:
            error = ApiError(404, f"Unknown path: {request.method} {request.path}", code="unknown_url")
            response.send(error.status, error_body(error))

    if not settings.own_metrics_port:
        yield
        return
    async with HttpServer(answer, http_error_body, http_limits(settings, _MAX_BODY_BYTES)) as server:
        await server.start(settings.http_host, settings.own_metrics_port)
        try:
            yield
        finally:
            await server.drain(0)


def http_limits(settings: GatewaySettings, max_body_bytes: int) -> HttpLimits:
    """Return the bounds of a connection that the settings set."""
    return HttpLimits(
        max_body_bytes=max_body_bytes,
        header_timeout_seconds=settings.header_timeout_seconds,
        body_timeout_seconds=settings.body_timeout_seconds,
        keep_alive_timeout_seconds=settings.keep_alive_timeout_seconds,
        slow_client_timeout_seconds=settings.slow_client_timeout_seconds,
        stream_idle_seconds=settings.stream_idle_seconds,
    )
