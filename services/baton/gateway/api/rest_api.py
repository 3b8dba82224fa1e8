"""The REST API: which endpoint answers a request, who may ask it, and the one place where failures become answers."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from opentelemetry.trace import SpanKind
from opentelemetry.util.types import AttributeValue

from baton.capacity.objectives import Objectives
from baton.errors import AuthenticationError, InvalidFieldError
from baton.gateway.access import admission
from baton.gateway.access.api_keys import ApiKey
from baton.gateway.access.cors import Cors
from baton.gateway.access.hosts import Hosts
from baton.gateway.api.anthropic.errors import ANTHROPIC_ERRORS, is_anthropic
from baton.gateway.api.body import decode_body
from baton.gateway.api.endpoint import Access, Endpoint, Exchange
from baton.gateway.api.errors import ApiError, ErrorFormat, to_api_error
from baton.gateway.api.openai.errors import OPENAI_ERRORS
from baton.gateway.api.tolerance import unrecognized
from baton.gateway.generation.observation import note_request, operation_span
from baton.gateway.http.content_coding import ACCEPTED_CODINGS, BodyInflater
from baton.gateway.http.messages import JSON, HeadVerdict, HttpError, HttpRequest
from baton.gateway.http.response import ClientGoneError, HttpResponse
from baton.gateway.http.rpc_refusal import refuse_rpc
from baton.telemetry import names
from baton.telemetry.tracing import is_tracing, server_attributes, span

log = logging.getLogger(__name__)


class RestApi:
    """Answers HTTP requests from a table of endpoints; `handle` is the server's handler."""

    def __init__(
        self,
        endpoints: Sequence[Endpoint],
        access: admission.AccessControl,
        cors: Cors | None,
        hosts: Hosts,
        inflater: BodyInflater,
        *,
        is_strict: bool = False,
        scheme: str = "http",
    ) -> None:
        """Make it. `cors` None: no other origin's pages read; `is_strict`: what would be left out is refused."""
        self._scheme, self._access = scheme, access
        self._cors, self._hosts = cors, hosts
        self._inflater, self._is_strict = inflater, is_strict
        self._endpoints: dict[str, dict[str, Endpoint]] = {}
        for endpoint in endpoints:
            self._endpoints.setdefault(endpoint.path, {})[endpoint.method] = endpoint
        self._prefixes = {path.partition("{")[0]: path for path in self._endpoints if "{" in path}

    def is_body_wanted(self, request: HttpRequest) -> bool:
        """Return whether a request is not refused for its head alone; `handle` says why."""
        try:
            request.verdict = self._judge(self._endpoints.get(self._route(request.path), {}), request)
        except (ApiError, AuthenticationError):
            return False
        return True

    async def handle(self, request: HttpRequest, response: HttpResponse) -> None:
        """Answer one request: expected failures become error objects, bugs a 500 and a traceback."""
        context = admission.RequestContext(route=self._route(request.path))
        methods = self._endpoints.get(context.route, {})
        with self._access.log.watch(context), self._traced(request, response, context, methods):
            try:
                context.request_id = _request_id(request, response)
                is_answered = self._cors is not None and self._cors.answer(request, response)
                if not is_answered and (context.route or not refuse_rpc(request, response)):
                    await self._dispatch(methods, Exchange(request, response, context, is_strict=self._is_strict))
            except ClientGoneError:
                raise
            except Exception as error:
                api_error = to_api_error(error)
                if api_error is None:
                    log.exception("request_failed method=%s path=%s", request.method, request.path)
                    api_error = ApiError(500, "internal error", kind="server_error", code="internal_error")
                context.error_code = api_error.code or api_error.kind
                form = next((endpoint.errors for endpoint in methods.values()), None)
                form = form or (ANTHROPIC_ERRORS if is_anthropic(request.headers) else OPENAI_ERRORS)
                _send_error(response, api_error, form, context)
            context.status = str(response.status)

    def _route(self, path: str) -> str:
        """Return the path of the endpoints that serve a path; empty if there are none."""
        if path in self._endpoints:
            return path
        return next((route for prefix, route in self._prefixes.items() if path.startswith(prefix)), "")

    async def _dispatch(self, methods: Mapping[str, Endpoint], exchange: Exchange) -> None:
        request, context = exchange.request, exchange.context
        verdict = request.verdict if isinstance(request.verdict, _Verdict) else self._judge(methods, request)
        endpoint, context.key = verdict.endpoint, verdict.key
        coding = request.headers.get("content-encoding", "").strip().lower()
        if endpoint.body is not None and coding not in ("", "identity"):
            await self._inflate(request, coding)
        if endpoint.request_id_header:
            exchange.response.headers[endpoint.request_id_header] = context.request_id
        if endpoint.body is not None:
            exchange.body = decode_body(
                request.body,
                endpoint.body,
                endpoint.unserved,
                lambda name, path: exchange.ignore(name, unrecognized(path)),
            )
        if endpoint.operation:
            await self._work(endpoint, exchange)
        else:
            await endpoint.answer(exchange)

    def _judge(self, methods: Mapping[str, Endpoint], request: HttpRequest) -> _Verdict:
        """Return who asks for what, by a head; raise ApiError if it is not served, AuthenticationError for no key."""
        access, key = next((endpoint.access for endpoint in methods.values()), Access.KEY), admission.ANYBODY
        if access is not Access.OPEN:
            if not self._hosts.is_allowed(host := request.headers.get("host", "")):
                text = f"This gateway is not called {host[:256]!r}: set --allowed-hosts or BATON_GATEWAY_ALLOWED_HOSTS"
                raise ApiError(421, text, code="unknown_host")
            key = self._access.authenticate(request.headers)
            if access is Access.ADMIN and not key.is_admin:
                raise ApiError(403, f"{request.path} needs the API key of an administrator", code="admin_key_needed")
        if not methods:
            raise self._unknown_path(request)
        endpoint = methods.get("GET" if request.method == "HEAD" else request.method)
        if endpoint is None:
            text = f"{request.path} takes {' or '.join(methods)}, not {request.method}"
            raise ApiError(405, text, code="method_not_allowed", headers={"allow": ", ".join(methods)})
        if endpoint.body is not None:
            _check_media_type(request)
        return _Verdict(endpoint, key)

    def _unknown_path(self, request: HttpRequest) -> ApiError:
        """Return the error of a path that nothing serves, with what was probably meant, or what is served."""
        text, path = f"Unknown path: {request.method} {request.path}", request.path
        meant = next((each for each in (f"/v1{path}", path.removeprefix("/v1")) if each in self._endpoints), None)
        if meant is not None:
            return ApiError(404, f"{text}; {meant} is served", code="unknown_url")
        served = [path for path, methods in self._endpoints.items() if any(each.operation for each in methods.values())]
        text = f"{text}. Whatever the model, text is generated here: by {', '.join(served)}, and what GET /docs lists"
        return ApiError(404, text, code="unknown_url")

    async def _inflate(self, request: HttpRequest, coding: str) -> None:
        try:
            await self._inflater.inflate(request, coding)
        except HttpError as error:
            code, headers = "invalid_content_encoding", dict[str, str]()
            if error.status == 415:
                code, headers = "unsupported_content_encoding", {"accept-encoding": ACCEPTED_CODINGS}
            raise ApiError(error.status, error.message, code=code, headers=headers) from error

    async def _work(self, endpoint: Endpoint, exchange: Exchange) -> None:
        """Answer what costs work: bounded in number and time."""
        context, num_bytes = exchange.context, len(exchange.request.body)
        context.objectives = _objectives(exchange.request)
        context.model = getattr(exchange.body, "model", None) or ""
        access, has_objectives = self._access, any(context.objectives)
        with (
            access.admission.slot(context),
            access.refusals.watch(context.key_name, num_bytes, model=context.model, has_objectives=has_objectives),
        ):
            async with access.limit(context.key):
                await endpoint.answer(exchange)

    @contextmanager
    def _traced(
        self,
        request: HttpRequest,
        response: HttpResponse,
        context: admission.RequestContext,
        methods: Mapping[str, Endpoint],
    ) -> Iterator[None]:
        """Make the spans of what costs work: that of the server, and in it that of the operation."""
        endpoint = methods.get(request.method)
        if endpoint is None or not endpoint.operation or not is_tracing():
            yield
            return
        address = server_attributes(request.headers.get("host", ""), 443 if self._scheme == "https" else 80)
        attributes = {**_http_attributes(request), **address}
        attributes |= {names.HTTP_ROUTE: context.route, names.URL_SCHEME: self._scheme}
        attributes[names.GEN_AI_OPERATION_NAME] = endpoint.operation
        failure, title = "", f"{request.method} {context.route}"
        with (
            span(title, SpanKind.SERVER, attributes, request.headers) as server,
            operation_span(endpoint.operation, address) as operation,
        ):
            try:
                yield
            except BaseException as error:  # the client has gone
                failure = type(error).__name__
                raise
            finally:
                if response.status:
                    server.set_attribute(names.HTTP_RESPONSE_STATUS_CODE, response.status)
                if response.status >= 500 or (response.status == 200 and not failure):
                    failure = context.error_code
                for each in (server, operation):
                    note_request(each, context, failure)


def _http_attributes(request: HttpRequest) -> dict[str, AttributeValue]:
    attributes = {names.HTTP_REQUEST_METHOD: request.method, names.URL_PATH: request.path}
    attributes[names.NETWORK_PROTOCOL_VERSION] = "1.1" if request.has_chunks else "1.0"
    further = {names.URL_QUERY: request.query, names.USER_AGENT_ORIGINAL: request.headers.get("user-agent", "")}
    return {**attributes, **{name: value for name, value in further.items() if value}}


@dataclass(frozen=True, slots=True)
class _Verdict(HeadVerdict):
    endpoint: Endpoint
    key: ApiKey


def _request_id(request: HttpRequest, response: HttpResponse) -> str:
    try:
        request_id = admission.accept_request_id(request.headers.get(admission.REQUEST_ID_HEADER, ""))
    except InvalidFieldError as error:
        raise ApiError(400, error.message, field=admission.REQUEST_ID_HEADER, code="invalid_value") from error
    response.headers[admission.REQUEST_ID_HEADER] = request_id
    return request_id


def _objectives(request: HttpRequest) -> Objectives:
    try:
        return admission.objectives_of(request.headers)
    except InvalidFieldError as error:
        raise ApiError(400, error.message, field=error.field, code="invalid_value") from error


def _check_media_type(request: HttpRequest) -> None:
    """Insist on JSON: other types a browser sends to a gateway on this machine for any web page, without asking."""
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type != JSON:
        text = f"The content type must be {JSON}, got {media_type or 'none'}"
        raise ApiError(415, text, code="unsupported_media_type")


def _send_error(response: HttpResponse, error: ApiError, form: ErrorFormat, context: admission.RequestContext) -> None:
    """Send an error with its status, or as the last event of a stream that has begun."""
    if not response.is_begun:
        response.send(error.status, form.body(error, context), headers=error.headers)
    elif response.is_stream:
        response.end(form.event(error, context), is_keep_alive=False)
