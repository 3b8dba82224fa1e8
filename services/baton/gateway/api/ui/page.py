"""The page /ui: the cluster as a picture, live requests, a chat box, and the layers of a request in time."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from importlib.resources import files
from urllib.parse import parse_qsl

import msgspec
from google.protobuf.json_format import MessageToDict

import baton
from baton.gateway.access.admission import Admission
from baton.gateway.api.answer import encode
from baton.gateway.api.endpoint import Exchange
from baton.gateway.api.ui.state import state_document
from baton.gateway.cluster.quarantine import Quarantine
from baton.gateway.cluster.router_client import RouterClient
from baton.gateway.generation.observation import Journal
from baton.gateway.models.catalog import ModelCatalog

_MEDIA_TYPES = {"html": "text/html", "css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}
_SCRIPTS = ("app", "chat", "cluster", "dom", "join", "layers", "models", "plan", "requests", "waterfall")
_PATHS = ("/ui", "/ui/", "/ui/style.css", "/ui/icon.svg", *(f"/ui/{name}.js" for name in _SCRIPTS))
_HEADERS = {
    "cache-control": "no-cache",
    "content-security-policy": "default-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
}


class InviteBody(msgspec.Struct):
    """Nothing: what matters is that pages of others cannot send JSON."""


class Ui:
    """Serves the page's files and what they ask for."""

    def __init__(
        self,
        router: RouterClient,
        journal: Journal,
        quarantine: Quarantine,
        catalog: ModelCatalog,
        admission: Admission,
        clock: Callable[[], float],
        exposures: Sequence[str] = (),
    ) -> None:
        self._exposures, self._router = exposures, router
        self._journal, self._quarantine = journal, quarantine
        self._catalog, self._admission = catalog, admission
        self._clock = clock
        self._files = {path: page_file(path[4:] or "index.html") for path in _PATHS}

    @property
    def paths(self) -> Collection[str]:
        """Return the paths of the files; they hold nothing of anyone's."""
        return self._files.keys()

    async def send_file(self, exchange: Exchange) -> None:
        """Send a file of the page."""
        headers, data = self._files[exchange.request.path]
        exchange.response.send(200, data, headers=headers)

    async def send_state(self, exchange: Exchange) -> None:
        """Send what the page shows, as JSON; `?request=NAME` adds a generation's frames. Raises BatonError."""
        states, planner = await self._router.list_node_states(), await self._router.list_models()
        name = dict(parse_qsl(exchange.request.query)).get("request", "")
        models = [(row, self._admission.places_of(row.root)) for row in self._catalog.listed()]
        document = state_document(models, baton.__version__, states, self._journal.look(), self._clock(), name=name)
        quarantine = [each._asdict() for each in self._quarantine.entries()]
        document = {**document, "exposures": self._exposures, "quarantine": quarantine}
        document |= {"planner": MessageToDict(planner, preserving_proto_field_name=True) if planner else None}
        exchange.response.send(200, encode(document), headers={"cache-control": "no-store"})

    async def invite(self, exchange: Exchange) -> None:
        """Send a code by which one machine joins, as `baton invite` does; raise BatonError if none can be had."""
        document = MessageToDict(await self._router.invite(), preserving_proto_field_name=True)
        exchange.response.send(200, encode(document), headers={"cache-control": "no-store"})


def page_file(name: str) -> tuple[Mapping[str, str], bytes]:
    """Return headers and content of a file of the page."""
    content = (files("baton.gateway.api.ui") / "files" / name).read_bytes()
    return {**_HEADERS, "content-type": f"{_MEDIA_TYPES[name.rpartition('.')[2]]}; charset=utf-8"}, content
