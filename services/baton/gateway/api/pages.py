"""What the REST API answers to GET."""

from __future__ import annotations

from urllib.parse import unquote

import msgspec

import baton
from baton.gateway.api.errors import ApiError
from baton.gateway.api.models import Models
from baton.gateway.cluster.catalog import ModelCatalog
from baton.gateway.http.messages import HttpRequest
from baton.gateway.http.response import HttpResponse
from baton.telemetry.prometheus import Scrape, content_type

OPEN_PATHS = ("/health", "/ready", "/version")
"""Paths that need no API key."""

_MODEL_PREFIX = "/v1/models/"

PAGES = {
    "/v1/models": "The models that are served.",
    _MODEL_PREFIX + "{model}": "One model.",
    "/health": "Whether the process is alive.",
    "/ready": "Whether requests can be served, and if not, why.",
    "/version": "Version of Baton.",
    "/metrics": "Metrics in Prometheus's text format.",
    "/openapi.json": "This API.",
}
"""What each route shows."""


class Pages:
    """Answers from what the gateway knows; nothing is asked of other services."""

    def __init__(self, catalog: ModelCatalog, models: Models, scrape: Scrape | None, *, openapi_body: bytes) -> None:
        self._openapi_body = openapi_body
        self._catalog = catalog
        self._models = models
        self._scrape = scrape

    def route(self, path: str) -> str:
        """Return the route of a path, without what varies in it; empty if there is none."""
        if path.startswith(_MODEL_PREFIX):
            return _MODEL_PREFIX + "{model}"
        return path if path in PAGES else ""

    def send(self, request: HttpRequest, response: HttpResponse) -> None:
        """Answer with the page of a path that has a route.

        Raises:
            NotFoundError: If it is that of a model that is not served.
        """
        path = request.path
        if path == "/v1/models":
            response.send(200, self._models.list_body())
        elif path == "/health":
            response.send(200, b'{"status":"ok"}')
        elif path == "/version":
            response.send(200, msgspec.json.encode({"version": baton.__version__}))
        elif path == "/ready":
            self._send_ready(response)
        elif path == "/openapi.json":
            response.send(200, self._openapi_body)
        elif path == "/metrics":
            self._send_metrics(request.headers.get("accept", ""), response)
        else:
            response.send(200, self._models.model_body(unquote(path.removeprefix(_MODEL_PREFIX))))

    def _send_metrics(self, accept: str, response: HttpResponse) -> None:
        if self._scrape is None:
            text = "several processes share this port; each has its metrics on its own, from --metrics-port on"
            raise ApiError(404, text, code="metrics_port")
        response.send(200, self._scrape.text(accept), headers={"content-type": content_type(accept)})

    def _send_ready(self, response: HttpResponse) -> None:
        problem = self._catalog.problem
        body = msgspec.json.encode({"status": "not ready" if problem else "ready", "cause": problem})
        response.send(503 if problem else 200, body)
