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
from baton.gateway.api.endpoint import Endpoint, Exchange
from baton.gateway.api.errors import ApiError
from baton.gateway.api.openapi import openapi_body
from baton.gateway.api.ui.page import page_file
from baton.gateway.models.catalog import ListedModel, ModelCatalog
from baton.gateway.models.status import unknown_model
from baton.telemetry.prometheus import Scrape, content_type
from baton.text.output_format import NONE


class ModelBody(msgspec.Struct):
    """OpenAI's model object, with the context length."""

    id: str
    created: int
    owned_by: str
    max_context_tokens: int
    """Longest sequence, prompt and output together; by its configuration while no node has been seen."""
    max_model_len: int
    """The same, as vLLM calls it."""
    tool_call_parser: str | None
    """Format in which the model calls tools; null: not known before a node has it."""
    reasoning_parser: str | None
    """Format in which it marks its reasoning; likewise."""
    root: str
    """Name of the model that is loaded: its own, that of which this is an adapter, or for which it stands."""
    parent: str | None
    """Name of the model of which this is an adapter; null: it is none."""
    state: str
    """absent, fetching, stored, loaded, serving, draining or failed: how far the model is on its way to requests."""
    progress: float | None
    """Part of that which is done, 0 to 1; null: not known."""
    cause: str
    """Why requests are not answered; empty: they are, or nobody has said."""
    object: str = "model"


class ModelListBody(msgspec.Struct):
    """OpenAI's list of models."""

    data: list[ModelBody]
    object: str = "list"


class Pages:
    """Answers of one gateway; nothing is asked of other services."""

    def __init__(self, catalog: ModelCatalog, scrape: Scrape | None, *, created_seconds: int) -> None:
        """Make them. `scrape`: the metrics, None: each process has its own; `created_seconds`: the gateway's start."""
        self._catalog, self._scrape = catalog, scrape
        self._created_seconds = created_seconds
        self._openapi_body = b""
        self._docs = {f"/docs{end}": page_file(f"docs{end or '.html'}") for end in ("", ".css", ".js")}

    def describe(self, endpoints: Sequence[Endpoint], *, is_strict: bool) -> None:
        """Take the table of routes, these pages among them, for the OpenAPI document; see `openapi_body`."""
        self._openapi_body = openapi_body(endpoints, is_strict=is_strict)

    async def send_models(self, exchange: Exchange) -> None:
        """Send the models, their adapters and aliases."""
        rows = self._catalog.listed()
        if is_anthropic(exchange.request.headers):
            first, last = (rows[0].name, rows[-1].name) if rows else (None, None)
            body = encode(ModelPage([self._anthropic_model(row) for row in rows], first, last))
        else:
            body = encode(ModelListBody([self._model(row, exchange) for row in rows]))
        exchange.response.send(200, body)

    async def send_model(self, exchange: Exchange) -> None:
        """Send one model; raise NotFoundError if it is not served."""
        name = unquote(exchange.request.path.removeprefix("/v1/models/"))
        rows = self._catalog.listed()
        row = next((row for row in rows if row.name == name), None)
        if row is None:
            raise unknown_model(name, [row.name for row in rows])
        is_for_anthropic = is_anthropic(exchange.request.headers)
        exchange.response.send(
            200, encode(self._anthropic_model(row) if is_for_anthropic else self._model(row, exchange))
        )

    async def send_health(self, exchange: Exchange) -> None:
        """Send that the process is alive."""
        exchange.response.send(200, b'{"status":"ok"}')

    async def send_ready(self, exchange: Exchange) -> None:
        """Send whether requests can be served; 503 if not."""
        problem = self._catalog.told_problem
        body = encode({"status": "not ready" if problem else "ready", "cause": problem})
        exchange.response.send(503 if problem else 200, body)

    async def send_version(self, exchange: Exchange) -> None:
        """Send the version of Baton."""
        exchange.response.send(200, encode({"version": baton.__version__}))

    async def send_metrics(self, exchange: Exchange) -> None:
        """Send the metrics; raise ApiError 404, if each process has its own."""
        if self._scrape is None:
            text = "several processes share this port; each has its metrics on its own, from --metrics-port on"
            raise ApiError(404, text, code="metrics_port")
        accept = exchange.request.headers.get("accept", "")
        exchange.response.send(200, self._scrape.text(accept), headers={"content-type": content_type(accept)})

    async def send_openapi(self, exchange: Exchange) -> None:
        """Send the OpenAPI document."""
        exchange.response.send(200, self._openapi_body)

    async def send_docs(self, exchange: Exchange) -> None:
        """Send a file of the page that shows the same to people."""
        headers, content = self._docs[exchange.request.path]
        exchange.response.send(200, content, headers=headers)

    def _anthropic_model(self, row: ListedModel) -> ModelObject:
        created_at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(self._created_seconds))
        return ModelObject(row.name, row.name, created_at, row.max_context_tokens, row.max_context_tokens)

    def _model(self, row: ListedModel, exchange: Exchange) -> ModelBody:
        formats = row.text.model_format.output_format if row.text else None
        return ModelBody(
            id=row.name,
            created=self._created_seconds,
            owned_by="baton",
            max_context_tokens=row.max_context_tokens,
            max_model_len=row.max_context_tokens,
            tool_call_parser=(formats.tool_format or NONE) if formats else None,
            reasoning_parser=(formats.reasoning_format or NONE) if formats else None,
            root=row.root,
            parent=row.root if row.is_adapter else None,
            state=row.status.stage,
            progress=row.status.progress,
            cause=row.status.cause if exchange.context.key.is_admin else "",
        )
