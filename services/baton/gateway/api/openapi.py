"""GET /openapi.json: the REST API as the schemas of its bodies have it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

import baton
from baton.gateway.api.anthropic.errors import ANTHROPIC_ERRORS
from baton.gateway.api.exo.endpoints import exo_paths
from baton.gateway.api.exo.instances import InstanceBody
from baton.gateway.api.openapi_answers import ANSWERS, ANTHROPIC_ERROR, OPENAI_ERROR
from baton.gateway.api.pages import OPEN_PATHS, PAGES
from baton.gateway.api.routes import Route
from baton.gateway.http.messages import EVENT_STREAM, JSON
from baton.telemetry.prometheus import MEDIA_TYPES

_REFERENCE = "#/components/schemas/{name}"
_ERROR_DESCRIPTION = "What is wrong, as an error object; the parameter is named."
_OBJECT = {"type": "object"}


def openapi_body(routes: Mapping[str, Route], *, has_exo: bool) -> bytes:
    """Return the document of the pages, of these routes and, if they are served, of exo's, as JSON: OpenAPI 3.1."""
    bodies = [route.body for route in routes.values()]
    references, schemas = msgspec.json.schema_components(
        [*bodies, *ANSWERS.values(), InstanceBody, OPENAI_ERROR, ANTHROPIC_ERROR], ref_template=_REFERENCE
    )
    answers = dict(zip(ANSWERS, references[len(bodies) :], strict=False))
    openai_error, anthropic_error = map(_error, references[-2:])
    for route in routes.values():
        _mark_unserved(schemas[route.body.__name__]["properties"], route.neutral_values)
    paths = {
        path: {"get": _page(path, summary, answers.get(path, {}), openai_error)} for path, summary in PAGES.items()
    }
    for (path, route), reference in zip(routes.items(), references, strict=False):
        error = anthropic_error if route.errors is ANTHROPIC_ERRORS else openai_error
        paths[path] = {"post": _operation(route, reference, answers.get(path, _OBJECT), error)}
    if has_exo:
        paths |= exo_paths(openai_error, references[-3])
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


def _mark_unserved(properties: dict[str, Any], neutral_values: Mapping[str, tuple[object, ...]]) -> None:
    """Say of fields that are declared to be refused which values are taken nevertheless."""
    for name in neutral_values.keys() & properties.keys():
        properties[name] = {
            "enum": [None, *neutral_values[name]],
            "default": None,
            "description": "Not served; these values ask for nothing.",
        }


def _error(reference: Mapping[str, Any]) -> dict[str, Any]:
    return {"description": _ERROR_DESCRIPTION, "content": {JSON: {"schema": reference}}}


def _operation(
    route: Route, reference: Mapping[str, Any], answer: Mapping[str, Any], error: Mapping[str, Any]
) -> dict[str, Any]:
    contents: dict[str, Any] = {JSON: {"schema": answer}}
    if "stream" in route.body.__struct_fields__:
        contents[EVENT_STREAM.partition(";")[0]] = {}
    return {
        "operationId": route.answer.__name__.removeprefix("answer_"),
        "summary": _summary(route),
        "requestBody": {"required": True, "content": {JSON: {"schema": reference}}},
        "responses": {"200": {"description": "The answer.", "content": contents}, "default": error},
    }


def _summary(route: Route) -> str:
    return (route.answer.__doc__ or "").partition("\n")[0]


def _page(path: str, summary: str, answer: Mapping[str, Any], error: Mapping[str, Any]) -> dict[str, Any]:
    is_text = path == "/metrics"
    content: dict[str, Any] = {media: {} for media in MEDIA_TYPES} if is_text else {JSON: {"schema": answer}}
    page: dict[str, Any] = {
        "summary": summary,
        "responses": {"200": {"description": summary, "content": content}, "default": error},
    }
    if path == "/ready":
        page["responses"]["503"] = {"description": "The cause why not.", "content": content}
    if "{model}" in path:
        page["parameters"] = [{"name": "model", "in": "path", "required": True, "schema": {"type": "string"}}]
    if path in OPEN_PATHS:
        page["security"] = []
    return page
