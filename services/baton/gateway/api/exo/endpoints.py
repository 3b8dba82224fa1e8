"""The cluster endpoints that tools written against exo ask beside the bench endpoint."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import parse_qsl, unquote

from baton.gateway.api.answer import encode
from baton.gateway.api.endpoint import Exchange
from baton.gateway.api.errors import ApiError, missing
from baton.gateway.api.exo import documents
from baton.gateway.api.exo.instances import Instance, Instances, instance_of, instance_view, link_of, links_document
from baton.gateway.cluster.quarantine import Quarantine
from baton.gateway.cluster.router_client import RouterClient
from baton.gateway.models.catalog import ModelCatalog
from baton.internal.v1.node_pb2 import NodeDescription

_COUNT = {"type": "integer", "minimum": 1, "maximum": 2**31 - 1}
PREVIEW_PARAMETERS: Sequence[Mapping[str, Any]] = [
    {"name": "model_id", "in": "query", "required": True, "schema": {"type": "string"}},
    {"name": "prompt_tokens", "in": "query", "schema": _COUNT, "description": "Prompt that is priced; 1024."},
    {"name": "max_tokens", "in": "query", "schema": _COUNT, "description": "Output that is priced; 128."},
]
"""Query of /instance/previews, as OpenAPI has it."""


class ExoApi:
    """Answers from the router's list of nodes and from the pins of this process.

    Errors of every endpoint: ApiError, 400, names what cannot be served, and 404 what does not exist; BatonError, if
    the router does not answer, the model is not served, or there are too many instances. `created_seconds` is since
    1970; `is_shared`: other processes, which would not know of a pin, have the same port.
    """

    def __init__(
        self,
        router: RouterClient,
        catalog: ModelCatalog,
        instances: Instances,
        quarantine: Quarantine,
        *,
        created_seconds: int,
        is_shared: bool = False,
    ) -> None:
        self._router, self._catalog = router, catalog
        self._instances, self._quarantine = instances, quarantine
        self._created_seconds, self._is_shared = created_seconds, is_shared

    async def send_models(self, exchange: Exchange) -> None:
        """Send the models, as exo lists them."""
        rows = [(row.name, row.max_context_tokens) for row in self._catalog.listed() if row.name == row.root]
        _send(exchange, documents.models_document(rows, self._created_seconds))

    async def send_state(self, exchange: Exchange) -> None:
        """Send the state, or the part of it to which the keys in the path lead."""
        states = await self._router.list_node_states()
        self._instances.note_nodes({state.node.node_id for state in states})
        document: Any = documents.state_document(states, self._instances.all())
        quarantine: dict[str, Any] = {}
        document["quarantine"] = quarantine
        for each in self._quarantine.entries():
            quarantine.setdefault(each.tenant, {})[each.fingerprint] = each._asdict()
        part = exchange.request.path.removeprefix("/state").removeprefix("/")
        for key in map(unquote, part.split("/")) if exchange.request.path != "/state" else ():
            if not isinstance(document, dict) or key not in document:
                raise ApiError(404, f"The state has no {part[:200]}", code="not_found")
            document = document[key]
        _send(exchange, document)

    async def send_previews(self, exchange: Exchange) -> None:
        """Send the placements that the router would consider for a request, cheapest first."""
        query = dict(parse_qsl(exchange.request.query, keep_blank_values=True))
        model = query.get("model_id")
        if not model:
            raise missing("model_id")
        self._catalog.check_name(model)
        counts = {name: documents.count_in_query(query, name) for name in ("prompt_tokens", "max_tokens")}
        _send(exchange, await documents.fetch_previews(self._router, model, await self._nodes(), **counts))

    async def create_instance(self, exchange: Exchange) -> None:
        """Pin a placement."""
        self._check_alone()
        instance = instance_of(instance_view(exchange.body), await self._nodes())
        self._catalog.check_name(instance.model)
        self._instances.add(instance)
        _send_receipt(exchange, instance_id=instance.instance_id)

    async def send_instance(self, exchange: Exchange) -> None:
        """Send a pinned placement."""
        nodes = await self._nodes()
        _send(exchange, documents.instance_document(self._instance(exchange), nodes))

    async def delete_instance(self, exchange: Exchange) -> None:
        """Lift a pin."""
        instance = self._instance(exchange)
        self._instances.remove(instance.instance_id)
        _send_receipt(exchange, instance_id=instance.instance_id)

    async def create_link(self, exchange: Exchange) -> None:
        """Have pinned placements compute the prompts of others."""
        self._check_alone()
        link = link_of(str(uuid.uuid4()), exchange.body, self._instances, await self._nodes())
        self._instances.link(link)
        _send_receipt(exchange, link_id=link.link_id)

    async def send_links(self, exchange: Exchange) -> None:
        """Send the links."""
        await self._nodes()
        _send(exchange, links_document(self._instances.links()))

    async def delete_link(self, exchange: Exchange) -> None:
        """End a link."""
        link_id = unquote(exchange.request.path.removeprefix("/v1/instance-links/"))
        if not self._instances.unlink(link_id):
            raise ApiError(404, f"There is no link {link_id[:64]!r}", code="not_found")
        _send_receipt(exchange, link_id=link_id)

    def _check_alone(self) -> None:
        if self._is_shared:
            text = "several processes share this port; a pin would hold for one of them only"
            raise ApiError(404, text, code="instances_unavailable")

    def _instance(self, exchange: Exchange) -> Instance:
        instance_id = unquote(exchange.request.path.removeprefix("/instance/"))
        instance = self._instances.get(instance_id)
        if instance is None:
            raise ApiError(404, f"There is no instance {instance_id[:64]!r}", code="not_found")
        return instance

    async def _nodes(self) -> dict[str, NodeDescription]:
        nodes = {node.node_id: node for node in await self._router.list_nodes()}
        self._instances.note_nodes(nodes)
        return nodes


def _send_receipt(exchange: Exchange, **names: str) -> None:
    _send(exchange, {"message": "Command received.", "command_id": str(uuid.uuid4()), **names})


def _send(exchange: Exchange, document: object) -> None:
    exchange.response.send(200, encode(document))
