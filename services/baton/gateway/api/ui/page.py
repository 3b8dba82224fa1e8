"""The page /ui: the cluster as a picture, live requests, a chat box, and the layers of a request in time."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from importlib.resources import files
from urllib.parse import parse_qsl

import baton
from baton.gateway.api.answer import encode
from baton.gateway.api.endpoint import Exchange
from baton.gateway.api.ui.state import state_document
from baton.gateway.cluster.quarantine import Quarantine
from baton.gateway.cluster.router_client import RouterClient
from baton.gateway.generation.observation import Journal
from baton.gateway.models.catalog import ModelCatalog

_MEDIA_TYPES = {"html": "text/html", "css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}
_SCRIPTS = ("app", "chat", "cluster", "dom", "layers", "requests", "waterfall")
_FILES = ("index.html", "style.css", "icon.svg", *(f"{name}.js" for name in _SCRIPTS))
_HEADERS = {
    "cache-control": "no-cache",
    "content-security-policy": "default-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
}


class Ui:
    """Serves the page's files and what they ask for."""

    def __init__(
        self,
        router: RouterClient,
        journal: Journal,
        quarantine: Quarantine,
        catalog: ModelCatalog,
        clock: Callable[[], float],
        exposures: Sequence[str] = (),
    ) -> None:
        self._exposures = exposures
        self._router = router
        self._journal = journal
        self._quarantine = quarantine
        self._catalog = catalog
        self._clock = clock
        self._files = _read_files()

    @property
    def paths(self) -> Collection[str]:
        """Return the paths of the files; they hold nothing of anyone's."""
        return self._files.keys()

    async def send_file(self, exchange: Exchange) -> None:
        """Send a file of the page."""
        media_type, data = self._files[exchange.request.path]
        headers = {**_HEADERS, "content-type": f"{media_type}; charset=utf-8"}
        exchange.response.send(200, data, headers=headers)

    async def send_state(self, exchange: Exchange) -> None:
        """Send what the page shows, as JSON; `?request=NAME` says of which generation it shows the frames.

        Raises:
            BatonError: If the router does not answer.
        """
        states = await self._router.list_node_states()
        name = dict(parse_qsl(exchange.request.query)).get("request", "")
        entries = self._journal.look()
        models = self._catalog.listed()
        document = state_document(models, baton.__version__, states, entries, self._clock(), name=name)
        quarantine = [each._asdict() for each in self._quarantine.entries()]
        document = {**document, "exposures": self._exposures, "quarantine": quarantine}
        exchange.response.send(200, encode(document), headers={"cache-control": "no-store"})


def _read_files() -> Mapping[str, tuple[str, bytes]]:
    """Return media type and bytes of every file by its path."""
    folder = files("baton.gateway.api.ui") / "files"
    pages = {f"/ui/{name}": (_MEDIA_TYPES[name.rpartition(".")[2]], (folder / name).read_bytes()) for name in _FILES}
    return {"/ui": pages["/ui/index.html"], "/ui/": pages["/ui/index.html"], **pages}
