"""The cluster endpoints that tools written against exo ask beside the bench endpoint.

The exo endpoints as OpenAPI describes them.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import parse_qsl, unquote

from baton.gateway.api.answer import encode
from baton.gateway.api.errors import ApiError, refused
from baton.gateway.api.exo.documents import instance_document, models_document, state_document
from baton.gateway.api.exo.instances import Instances, decode_view, instance_of
from baton.gateway.api.exo.previews import fetch_previews, reference_request, wanted_request
from baton.gateway.cluster.catalog import ModelCatalog, describe
from baton.gateway.cluster.router_client import RouterClient
from baton.gateway.http.messages import JSON, HttpRequest
from baton.gateway.http.response import HttpResponse
from baton.v1.router_service_pb2 import NodeState

EXO_METHODS = {
    "/models": ("GET",),
    "/state": ("GET",),
    "/state/{path}": ("GET",),
    "/instance/previews": ("GET",),
    "/instance": ("POST",),
    "/instance/{instance_id}": ("GET", "DELETE"),
}
"""Routes, and what each takes."""

_STATE_PREFIX, _INSTANCE_PREFIX = "/state/", "/instance/"


class ExoApi:
    """Answers from the router's list of nodes and from the pins of this process.

    Args:
        router: Asked anew for every answer.
        catalog: Knows the model.
        instances: The pins.
        created_seconds: When the gateway started, since 1970.
        is_shared: Whether other processes, which would not know of a pin, answer on the same port.
    """

    def __init__(
        self,
        router: RouterClient,
        catalog: ModelCatalog,
        instances: Instances,
        *,
        created_seconds: int,
        is_shared: bool = False,
    ) -> None:
        self._router = router
        self._catalog = catalog
        self._instances = instances
        self._created_seconds = created_seconds
        self._is_shared = is_shared

    @staticmethod
    def route(path: str) -> str:
        """Return the route of a path, without what varies in it; empty if there is none."""
        if path in EXO_METHODS:
            return path
        if path.startswith(_STATE_PREFIX):
            return "/state/{path}"
        return "/instance/{instance_id}" if path.startswith(_INSTANCE_PREFIX) else ""

    async def answer(self, request: HttpRequest, response: HttpResponse) -> None:
        """Answer a request whose path has a route and whose method it takes.

        Raises:
            ApiError: 400, naming what cannot be served; 404 for what does not exist.
            BatonError: If the router does not answer, the model is not served, or there are too many instances.
        """
        response.send(200, encode(await self._document(request)))

    async def _document(self, request: HttpRequest) -> object:
        path = request.path
        if path == "/models":
            return models_document(
                self._catalog.model_name,
                created_seconds=self._created_seconds,
                max_context_tokens=self._catalog.max_context_tokens,
            )
        if path == "/instance/previews":
            return await self._previews(request.query)
        if path == "/instance":
            return await self._create(request.body)
        if path.startswith(_INSTANCE_PREFIX):
            instance_id = unquote(path.removeprefix(_INSTANCE_PREFIX))
            return self._delete(instance_id) if request.method == "DELETE" else await self._show(instance_id)
        return await self._state(path.removeprefix(_STATE_PREFIX).split("/") if path != "/state" else ())

    async def _state(self, keys: Sequence[str]) -> object:
        """Return the state, or the part of it to which the keys lead."""
        document: Any = state_document(await self._nodes(), self._instances.all())
        for key in map(unquote, keys):
            if not isinstance(document, dict) or key not in document:
                raise ApiError(404, f"The state has no {'/'.join(keys)[:200]}", code="not_found")
            document = document[key]
        return document

    async def _previews(self, query: str) -> dict[str, Any]:
        parameters = dict(parse_qsl(query, keep_blank_values=True))
        model = parameters.get("model_id")
        if not model:
            raise refused("model_id", "Missing required parameter: `model_id`", code="missing_required_parameter")
        self._catalog.check_model_name(model)
        wanted = wanted_request(parameters)
        nodes = [state.node for state in await self._nodes()]
        served = describe(model, nodes)
        reference = reference_request(wanted, max_context_tokens=served.max_context_tokens if served else 0)
        return await fetch_previews(self._router, model, reference, nodes)

    async def _create(self, body: bytes) -> dict[str, Any]:
        if self._is_shared:
            text = "several processes share this port; a pin would hold for one of them only"
            raise ApiError(404, text, code="instances_unavailable")
        view = decode_view(body)
        instance = instance_of(view, {state.node.node_id: state.node for state in await self._nodes()})
        self._catalog.check_model_name(instance.model)
        self._instances.add(instance)
        return _receipt(instance.instance_id)

    async def _show(self, instance_id: str) -> dict[str, Any]:
        nodes = {state.node.node_id: state.node for state in await self._nodes()}
        instance = self._instances.get(instance_id)
        if instance is None:
            raise _no_instance(instance_id)
        return instance_document(instance, nodes)

    def _delete(self, instance_id: str) -> dict[str, Any]:
        if not self._instances.remove(instance_id):
            raise _no_instance(instance_id)
        return _receipt(instance_id)

    async def _nodes(self) -> Sequence[NodeState]:
        states = await self._router.list_node_states()
        self._instances.note_nodes({state.node.node_id for state in states})
        return states


def _receipt(instance_id: str) -> dict[str, Any]:
    return {"message": "Command received.", "command_id": str(uuid.uuid4()), "instance_id": instance_id}


def _no_instance(instance_id: str) -> ApiError:
    return ApiError(404, f"There is no instance {instance_id[:64]!r}", code="not_found")


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
