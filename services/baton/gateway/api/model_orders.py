"""POST /v1/models/load and /unload: what an administrator wants the deployment to serve."""

from __future__ import annotations

from typing import Annotated

import msgspec

from baton.gateway.api.answer import encode
from baton.gateway.api.endpoint import Access, Endpoint, Exchange
from baton.gateway.cluster.router_client import RouterClient
from baton.internal.v1.model_service_pb2 import ChangeModelRequest, DesiredModel
from baton.wire.model_stages import stage_name

_Count = Annotated[int, msgspec.Meta(ge=0, le=1024)]


class LoadBody(msgspec.Struct, forbid_unknown_fields=True):
    """A model that is wanted, in place of what was wanted of it before."""

    model: str
    """Name under which it is served."""
    source: str = ""
    """Folder on the machines, or org/name[@revision] of a hub; empty: as it is known."""
    min_replicas: _Count = 1
    """Machines that serve it at least."""
    max_replicas: _Count = 0
    """At most; 0: as many as it fits on."""
    machines: list[str] = []
    """Machines that serve it, and no others; empty: whichever the plan chooses."""
    excluded_machines: list[str] = []
    """Machines that never serve it."""
    on_demand: bool = False
    """Whether it is only stored until a request for it comes."""
    keep_alive_seconds: Annotated[int, msgspec.Meta(ge=0, le=10**9)] = 0
    """Then, time without a request after which it goes; 0: five minutes."""
    dry_run: bool = False
    """Whether nothing changes: `forecast` says what would."""


class UnloadBody(msgspec.Struct, forbid_unknown_fields=True):
    """A model that nobody wants any more."""

    model: str
    """Its name."""
    forget: bool = False
    """Whether its name is known no more, too."""
    dry_run: bool = False
    """Whether nothing changes: `forecast` says what would."""


class OrderedModel(msgspec.Struct):
    """How a model stands; GET /v1/models tells how it goes on."""

    model: str
    state: str
    """absent, fetching, stored, loaded, serving, draining or failed."""
    cause: str
    """Why it is not served; empty: it is, or it is on its way."""
    forecast: list[str] = []
    """Of a dry run: where it would go, what it would take there, and what else would change, in lines for people."""


class ModelOrders:
    """Passes changes on to the router that leads."""

    def __init__(self, router: RouterClient) -> None:
        self._router = router

    def endpoints(self) -> list[Endpoint]:
        """Return the rows of the table of routes; they are for administrators."""
        return [
            Endpoint("POST", f"/v1/models/{verb}", answer, summary, OrderedModel, body=body, access=Access.ADMIN)
            for verb, answer, summary, body in (
                ("load", self.load, "Have a model served by the machines that the plan chooses.", LoadBody),
                ("unload", self.unload, "End a model's workers once their requests have ended.", UnloadBody),
            )
        ]

    async def load(self, exchange: Exchange) -> None:
        """Want a model."""
        body: LoadBody = exchange.body
        wanted = DesiredModel(
            name=body.model,
            source=body.source,
            min_replica_count=body.min_replicas,
            max_replica_count=body.max_replicas,
            pinned_machines=body.machines,
            excluded_machines=body.excluded_machines,
            is_on_demand=body.on_demand,
        )
        wanted.keep_alive.FromSeconds(body.keep_alive_seconds)
        await self._change(exchange, ChangeModelRequest(load=wanted, is_dry_run=body.dry_run))

    async def unload(self, exchange: Exchange) -> None:
        """Want a model no more."""
        body: UnloadBody = exchange.body
        change = ChangeModelRequest(is_dry_run=body.dry_run)
        setattr(change, "forget" if body.forget else "unload", body.model)
        await self._change(exchange, change)

    async def _change(self, exchange: Exchange, request: ChangeModelRequest) -> None:
        answer = await self._router.change_model(request)
        state, forecast = answer.model, list(answer.forecast)
        ordered = OrderedModel(state.desired.name, stage_name(state.stage), state.problem, forecast)
        exchange.response.send(200, encode(ordered))
