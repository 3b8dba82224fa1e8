"""The page /ui: the cluster as a picture, live requests, a chat box, and the layers of a request in time."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib.resources import files

import baton
from baton.gateway.api.answer import encode
from baton.gateway.api.ui.state import state_document
from baton.gateway.cluster.router_client import RouterClient
from baton.gateway.generation.observation import Journal
from baton.gateway.http.messages import HttpRequest
from baton.gateway.http.response import HttpResponse

STATE_PATH = "/ui/state"
"""What the page shows, as JSON; needs an API key where the gateway asks for keys."""

_MEDIA_TYPES = {"html": "text/html", "css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}
_SCRIPTS = ("app", "chat", "cluster", "dom", "requests", "waterfall")
_FILES = ("index.html", "style.css", "icon.svg", *(f"{name}.js" for name in _SCRIPTS))
_HEADERS = {
    "cache-control": "no-cache",
    "content-security-policy": "default-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
}


class Ui:
    """Serves the page's files and what they ask for.

    Args:
        router: Asked anew for every picture.
        journal: Knows the requests of this process.
        model: Served name.
        clock: The event loop's.
    """

    def __init__(self, router: RouterClient, journal: Journal, model: str, clock: Callable[[], float]) -> None:
        self._router = router
        self._journal = journal
        self._model = model
        self._clock = clock
        self._files = _read_files()

    def route(self, path: str) -> str:
        """Return the route of a path; empty if there is none."""
        return path if path == STATE_PATH or path in self._files else ""

    def is_open(self, path: str) -> bool:
        """Return whether a path needs no API key: the files hold nothing of anyone's."""
        return path in self._files

    async def answer(self, request: HttpRequest, response: HttpResponse) -> None:
        """Answer a request whose path has a route.

        Raises:
            BatonError: If the router does not answer.
        """
        if request.path == STATE_PATH:
            states = await self._router.list_node_states()
            document = state_document(self._model, baton.__version__, states, self._journal.look(), self._clock())
            response.send(200, encode(document), headers={"cache-control": "no-store"})
            return
        media_type, data = self._files[request.path]
        response.send(200, data, headers={**_HEADERS, "content-type": f"{media_type}; charset=utf-8"})


def _read_files() -> Mapping[str, tuple[str, bytes]]:
    """Return media type and bytes of every file by its path."""
    folder = files("baton.gateway") / "ui_files"
    pages = {f"/ui/{name}": (_MEDIA_TYPES[name.rpartition(".")[2]], (folder / name).read_bytes()) for name in _FILES}
    return {"/ui": pages["/ui/index.html"], "/ui/": pages["/ui/index.html"], **pages}
