"""GET /openapi.json: the REST API as its table of routes and the types of its bodies have it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from types import UnionType
from typing import Any, get_args

import msgspec

import baton
from baton.gateway.api.anthropic.errors import ANTHROPIC_ERRORS, ErrorBody
from baton.gateway.api.endpoint import Access, Endpoint
from baton.gateway.api.openai.errors import ErrorAnswer
from baton.gateway.api.tolerance import ClosedBody, Unserved
from baton.gateway.http.messages import EVENT_STREAM, JSON
from baton.telemetry.prometheus import MEDIA_TYPES

_REFERENCE = "#/components/schemas/{name}"
_ERROR_DESCRIPTION = "What is wrong, as an error object; the parameter is named."
_ANYTHING: dict[str, Any] = {"type": ["object", "array", "string", "number"]}


def openapi_body(endpoints: Sequence[Endpoint], *, is_strict: bool) -> bytes:
    """Return the endpoints with a summary, as OpenAPI 3.1 in JSON. `is_strict`: all unknown fields are refused."""
    told = [endpoint for endpoint in endpoints if endpoint.summary]
    bodies = [endpoint.body for endpoint in told if endpoint.body is not None]
    answers = [kind for endpoint in told for kind in _alternatives(endpoint.returns)]
    references, schemas = msgspec.json.schema_components(
        [*bodies, *answers, ErrorAnswer, ErrorBody], ref_template=_REFERENCE
    )
    body_schemas = dict(zip(bodies, references, strict=False))
    closed = {each.__name__ for each in ClosedBody.__subclasses__()}
    for name, schema in schemas.items():
        if not is_strict and name not in closed:
            schema.pop("additionalProperties", None)
    either = {"anyOf": list(references[-2:])}
    errors = {None: either, ANTHROPIC_ERRORS: references[-1]}
    paths: dict[str, dict[str, Any]] = {}
    answer_schemas = iter(references[len(bodies) :])
    for endpoint in told:
        parts = [next(answer_schemas) for _ in _alternatives(endpoint.returns)]
        answer = parts[0] if len(parts) == 1 else {"anyOf": parts}
        if endpoint.body is not None:
            _mark_unserved(schemas[endpoint.body.__name__]["properties"], endpoint.unserved)
        error_schema = errors.get(endpoint.errors, references[-2])
        error = {"description": _ERROR_DESCRIPTION, "content": {JSON: {"schema": error_schema}}}
        operation = _operation(endpoint, body_schemas, answer, error)
        paths.setdefault(endpoint.path, {})[endpoint.method.lower()] = operation
    document = {
        "openapi": "3.1.0",
        "info": {"title": "Baton", "version": baton.__version__},
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer"},
                "key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
            },
        },
        "security": [{"bearer": []}, {"key": []}, {}],
    }
    return msgspec.json.encode(document)


def _alternatives(returns: Any) -> tuple[Any, ...]:
    """Return the types of which an answer is one; msgspec takes no union of several objects."""
    return get_args(returns) if isinstance(returns, UnionType) else (returns,)


def _mark_unserved(properties: dict[str, Any], unserved: Unserved) -> None:
    """Say of fields that are known and not served which values are taken nevertheless."""
    for name in unserved.promises:
        if name not in properties and "." not in name:
            properties[name] = {
                "enum": [None, *unserved.promises[name]],
                "default": None,
                "description": "Not served; these values ask for nothing.",
            }


def _operation(
    endpoint: Endpoint,
    bodies: Mapping[type[msgspec.Struct], Mapping[str, Any]],
    answer: Mapping[str, Any],
    error: Mapping[str, Any],
) -> dict[str, Any]:
    content = _content(endpoint, answer)
    description = "The answer." if endpoint.operation else endpoint.summary
    operation: dict[str, Any] = {
        "summary": endpoint.summary,
        "responses": {"200": {"description": description, "content": content}, "default": error},
    }
    if endpoint.operation:
        function = endpoint.answer.func if isinstance(endpoint.answer, partial) else endpoint.answer
        operation["operationId"] = function.__name__.removeprefix("answer_")
    if endpoint.body is not None:
        operation["requestBody"] = {"required": True, "content": {JSON: {"schema": bodies[endpoint.body]}}}
    if endpoint.parameters:
        operation["parameters"] = endpoint.parameters
    if endpoint.path == "/ready":
        operation["responses"]["503"] = {"description": "The cause why not.", "content": content}
    if endpoint.access is Access.OPEN:
        operation["security"] = []
    return operation


def _content(endpoint: Endpoint, answer: Mapping[str, Any]) -> dict[str, Any]:
    """Return the media types of an answer and their schemas."""
    if endpoint.path == "/metrics":
        return {media: {} for media in MEDIA_TYPES}
    if endpoint.returns is None:
        return {JSON: {"schema": {}}}
    content: dict[str, Any] = {JSON: {"schema": answer or _ANYTHING}}
    if endpoint.body is not None and "stream" in endpoint.body.__struct_fields__:
        content[EVENT_STREAM.partition(";")[0]] = {}
    return content
