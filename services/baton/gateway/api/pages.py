"""What the REST API answers to GET from what the gateway knows: models, health, metrics, and its own description."""

from __future__ import annotations

import time
from collections.abc import Sequence
from urllib.parse import unquote

import msgspec

import baton
from baton.gateway.api.answer import encode
from baton.gateway.api.anthropic.errors import is_anthropic
from baton.gateway.api.anthropic.schema import ModelObject, ModelPage
from baton.gateway.api.docs import DOCS_HEADERS, docs_page
from baton.gateway.api.endpoint import Endpoint, Exchange
from baton.gateway.api.errors import ApiError
from baton.gateway.api.openapi import openapi_body
from baton.gateway.cluster.router_client import ModelCatalog
from baton.telemetry.prometheus import Scrape, content_type
from baton.text.output_format import NONE, OutputFormat


class ModelBody(msgspec.Struct):
    """OpenAI's model object, with the context length."""

    id: str
    created: int
    owned_by: str
    max_context_tokens: int
    """Longest sequence, prompt and output together; by its configuration while no node has been seen."""
    max_model_len: int
    """The same, as vLLM calls it."""
    tool_call_parser: str
    """Format in which the model calls tools."""
    reasoning_parser: str
    """Format in which it marks its reasoning."""
    root: str
    """Name of the model that is loaded: its own, or that of which this is an adapter."""
    parent: str | None
    """Name of the model of which this is an adapter; null: it is none."""
    object: str = "model"


class ModelListBody(msgspec.Struct):
    """OpenAI's list of models."""

    data: list[ModelBody]
    object: str = "list"


class Pages:
    """Answers of one gateway; nothing is asked of other services."""

    def __init__(
        self, catalog: ModelCatalog, output_format: OutputFormat, scrape: Scrape | None, *, created_seconds: int
    ) -> None:
        """Make them.

        Args:
            catalog: Knows the model and its adapters.
            output_format: Formats in which the model writes.
            scrape: The metrics; None: each process has its own, on a port of its own.
            created_seconds: When the gateway started, since 1970.
        """
        self._catalog = catalog
        self._output_format = output_format
        self._scrape = scrape
        self._created_seconds = created_seconds
        self._openapi_body = b""

    def describe(self, endpoints: Sequence[Endpoint], *, is_strict: bool) -> None:
        """Take the table of routes, these pages among them, for the OpenAPI document; see `openapi_body`."""
        self._openapi_body = openapi_body(endpoints, is_strict=is_strict)

    async def send_models(self, exchange: Exchange) -> None:
        """Send the model and its adapters."""
        names = (self._catalog.model_name, *self._catalog.adapter_names)
        if is_anthropic(exchange.request.headers):
            body = encode(ModelPage([self._anthropic_model(name) for name in names], names[0], names[-1]))
        else:
            body = encode(ModelListBody([self._model(name) for name in names]))
        exchange.response.send(200, body)

    async def send_model(self, exchange: Exchange) -> None:
        """Send one model.

        Raises:
            NotFoundError: If it is not served.
        """
        name = unquote(exchange.request.path.removeprefix("/v1/models/"))
        if name not in self._catalog.adapter_names:
            self._catalog.check_model_name(name)
        is_for_anthropic = is_anthropic(exchange.request.headers)
        exchange.response.send(200, encode(self._anthropic_model(name) if is_for_anthropic else self._model(name)))

    async def send_health(self, exchange: Exchange) -> None:
        """Send that the process is alive."""
        exchange.response.send(200, b'{"status":"ok"}')

    async def send_ready(self, exchange: Exchange) -> None:
        """Send whether requests can be served; 503 if not."""
        problem = self._catalog.problem
        body = encode({"status": "not ready" if problem else "ready", "cause": problem})
        exchange.response.send(503 if problem else 200, body)

    async def send_version(self, exchange: Exchange) -> None:
        """Send the version of Baton."""
        exchange.response.send(200, encode({"version": baton.__version__}))

    async def send_metrics(self, exchange: Exchange) -> None:
        """Send the metrics.

        Raises:
            ApiError: 404, if each process has its own.
        """
        if self._scrape is None:
            text = "several processes share this port; each has its metrics on its own, from --metrics-port on"
            raise ApiError(404, text, code="metrics_port")
        accept = exchange.request.headers.get("accept", "")
        exchange.response.send(200, self._scrape.text(accept), headers={"content-type": content_type(accept)})

    async def send_openapi(self, exchange: Exchange) -> None:
        """Send the OpenAPI document."""
        exchange.response.send(200, self._openapi_body)

    async def send_docs(self, exchange: Exchange) -> None:
        """Send the same for people."""
        exchange.response.send(200, docs_page(self._openapi_body), headers=DOCS_HEADERS)

    def _anthropic_model(self, name: str) -> ModelObject:
        created_at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(self._created_seconds))
        return ModelObject(name, name, created_at, self._catalog.max_context_tokens, self._catalog.max_context_tokens)

    def _model(self, name: str) -> ModelBody:
        model_name = self._catalog.model_name
        return ModelBody(
            id=name,
            created=self._created_seconds,
            owned_by="baton",
            max_context_tokens=self._catalog.max_context_tokens,
            max_model_len=self._catalog.max_context_tokens,
            tool_call_parser=self._output_format.tool_format or NONE,
            reasoning_parser=self._output_format.reasoning_format or NONE,
            root=model_name,
            parent=None if name == model_name else model_name,
        )
