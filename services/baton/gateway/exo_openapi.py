"""The exo endpoints as OpenAPI describes them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from baton.gateway.exo_api import EXO_METHODS
from baton.gateway.http_messages import JSON

_SUMMARIES = {
    ("GET", "/models"): "The models that are served, as exo lists them.",
    ("GET", "/state"): "Instances, runners, and what the nodes' sensors say.",
    ("GET", "/state/{path}"): "A part of the state, its keys separated by slashes.",
    ("GET", "/instance/previews"): "The placements that the router would consider for a request, cheapest first.",
    ("POST", "/instance"): "Hold benchmark requests of a model to the nodes of a preview; other requests go anywhere.",
    ("GET", "/instance/{instance_id}"): "A pinned placement.",
    ("DELETE", "/instance/{instance_id}"): "Lift a pin; no process ends.",
}
_STRING, _COUNT = {"type": "string"}, {"type": "integer", "minimum": 1, "maximum": 2**31 - 1}
_PART_TYPES = ["object", "array", "string", "number"]
_PARAMETERS: dict[str, list[dict[str, Any]]] = {
    "/state/{path}": [{"name": "path", "in": "path", "required": True, "schema": _STRING}],
    "/instance/{instance_id}": [{"name": "instance_id", "in": "path", "required": True, "schema": _STRING}],
    "/instance/previews": [
        {"name": "model_id", "in": "query", "required": True, "schema": _STRING},
        {"name": "prompt_tokens", "in": "query", "schema": _COUNT, "description": "Prompt that is priced; 1024."},
        {"name": "max_tokens", "in": "query", "schema": _COUNT, "description": "Output that is priced; 128."},
    ],
}


def exo_paths(error: dict[str, Any], instance_reference: Mapping[str, Any]) -> dict[str, Any]:
    """Return the path items.

    Args:
        error: What every operation answers to what it cannot serve.
        instance_reference: Schema of the body of POST /instance.
    """
    paths: dict[str, Any] = {}
    for path, methods in EXO_METHODS.items():
        for method in methods:
            summary = _SUMMARIES[method, path]
            types = _PART_TYPES if path == "/state/{path}" else "object"
            content: dict[str, Any] = {JSON: {"schema": {"type": types}}}
            operation: dict[str, Any] = {
                "summary": summary,
                "responses": {"200": {"description": summary, "content": content}, "default": error},
            }
            if path in _PARAMETERS:
                operation["parameters"] = _PARAMETERS[path]
            if method == "POST":
                operation["requestBody"] = {"required": True, "content": {JSON: {"schema": instance_reference}}}
            paths.setdefault(path, {})[method.lower()] = operation
    return paths
