"""The REST API: routes, and the one place where failures become answers."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from opentelemetry.propagate import extract
from opentelemetry.trace import SpanKind, Status, StatusCode

from baton.errors import InvalidFieldError
from baton.gateway.access.cors import Cors
from baton.gateway.access.limits import AccessControl, Deadlines
from baton.gateway.access.request_context import HEADER, RequestContext, accept_request_id
from baton.gateway.api.errors import OPENAI_ERRORS, ApiError, ErrorFormat, to_api_error
from baton.gateway.api.exo.endpoints import EXO_METHODS, ExoApi
from baton.gateway.api.pages import OPEN_PATHS, Pages
from baton.gateway.api.routes import Route
from baton.gateway.api.ui.page import Ui
from baton.gateway.generation.generator import TextGenerator
from baton.gateway.http.messages import JSON, HttpRequest
from baton.gateway.http.response import ClientGoneError, HttpResponse
from baton.telemetry import names
from baton.telemetry.tracing import tracer

log = logging.getLogger(__name__)


class RestApi:
    """Answers HTTP requests; `handle` is the server's handler."""

    def __init__(
        self,
        generator: TextGenerator,
        gate: AccessControl,
        pages: Pages,
        cors: Cors,
        routes: Mapping[str, Route],
        exo: ExoApi | None,
        ui: Ui | None,
        *,
        deadlines: Deadlines,
    ) -> None:
        self._generator = generator
        self._gate = gate
        self._pages = pages
        self._cors = cors
        self._routes = routes
        self._exo = exo
        self._ui = ui
        self._deadlines = deadlines

    async def handle(self, request: HttpRequest, response: HttpResponse) -> None:
        """Answer one request: expected failures become error objects, bugs a 500 and a traceback."""
        path = request.path
        call = RequestContext(route=self._name_of(path), body=request.body)
        with self._gate.traffic.watch(call):
            try:
                call.request_id = _request_id(request, response)
                if not self._cors.answer(request, response):
                    await self._route(request, call, response)
            except ClientGoneError:
                raise
            except Exception as error:
                api_error = to_api_error(error)
                if api_error is None:
                    log.exception("request_failed method=%s path=%s", request.method, path)
                    api_error = ApiError(500, "internal error", error_type="server_error", code="internal_error")
                call.error_code = api_error.code or api_error.error_type
                errors = self._routes[path].errors if path in self._routes else OPENAI_ERRORS
                _send_error(response, api_error, errors, call)
            call.status = str(response.status)

    async def _route(self, request: HttpRequest, call: RequestContext, response: HttpResponse) -> None:
        path = request.path
        ui = self._ui if self._ui is not None and self._ui.route(path) else None
        if path not in OPEN_PATHS and not (ui and ui.is_open(path)):
            call.key_name = self._gate.keys.authenticate(request.headers)
        if path in self._routes:
            _check_method(request, "POST")
            _check_media_type(request)
            await self._generate(self._routes[path], request, call, response)
        elif self._pages.route(path):
            _check_method(request, "GET")
            self._pages.send(request, response)
        elif ui is not None:
            _check_method(request, "GET")
            await ui.answer(request, response)
        elif self._exo is not None and call.route:
            _check_method(request, *EXO_METHODS[call.route])
            if request.method == "POST":
                _check_media_type(request)
            await self._exo.answer(request, response)
        else:
            raise ApiError(404, f"Unknown path: {request.method} {path}", code="unknown_url")

    def _name_of(self, path: str) -> str:
        """Return the route of a path, without what varies in it; empty if there is none."""
        if path in self._routes or (self._ui is not None and self._ui.route(path)):
            return path
        return self._pages.route(path) or (self._exo.route(path) if self._exo is not None else "")

    async def _generate(self, route: Route, request: HttpRequest, call: RequestContext, response: HttpResponse) -> None:
        attributes = {names.REQUEST_ID: call.request_id, names.GEN_AI_OPERATION_NAME: route.operation}
        parent = extract(request.headers)
        with (
            self._gate.admission.slot(call.key_name),
            tracer().start_as_current_span(route.operation, parent, SpanKind.SERVER, attributes) as span,
        ):
            try:
                async with self._deadlines.limit():
                    await route.answer(self._generator, call, response)
            except Exception as error:
                span.set_status(Status(StatusCode.ERROR, str(error)))
                raise


def _request_id(request: HttpRequest, response: HttpResponse) -> str:
    try:
        request_id = accept_request_id(request.headers.get(HEADER, ""))
    except InvalidFieldError as error:
        raise ApiError(400, error.message, param=HEADER, code="invalid_value") from error
    response.headers[HEADER] = request_id
    return request_id


def _check_method(request: HttpRequest, *methods: str) -> None:
    """Insist on one of some methods; HEAD may ask what GET does, and gets no body."""
    if ("GET" if request.method == "HEAD" else request.method) not in methods:
        text = f"{request.path} takes {' or '.join(methods)}, not {request.method}"
        raise ApiError(405, text, code="method_not_allowed", headers={"allow": ", ".join(methods)})


def _check_media_type(request: HttpRequest) -> None:
    """Insist on JSON: other types a browser sends to a gateway on this machine for any web page, without asking."""
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type != JSON:
        text = f"The content type must be {JSON}, got {media_type or 'none'}"
        raise ApiError(415, text, code="unsupported_media_type")
    if (coding := request.headers.get("content-encoding", "").strip().lower()) not in ("", "identity"):
        text = f"The body must not be compressed, got content encoding {coding}"
        raise ApiError(415, text, code="unsupported_content_encoding", headers={"accept-encoding": "identity"})


def _send_error(response: HttpResponse, error: ApiError, form: ErrorFormat, call: RequestContext) -> None:
    """Send an error with its status, or as the last event of a stream that has begun."""
    if not response.is_begun:
        response.send(error.status, form.body(error, call), headers=error.headers)
    elif response.is_stream:
        response.end(form.event(error, call), is_keep_alive=False)
