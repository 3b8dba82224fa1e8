"""HTTP servers that answer what a test says."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import NamedTuple

_END_SECONDS = 10.0


class Request(NamedTuple):
    """What a client asks for."""

    method: str
    """GET, POST or PUT."""
    path: str
    """With the query."""
    headers: Mapping[str, str]
    """By name, in any case of letters."""
    body: bytes
    """Empty for GET."""


class Answer(NamedTuple):
    """What it gets."""

    status: int
    """Of HTTP."""
    content: bytes
    """All of the body, whose length is told."""
    num_missing_bytes: int = 0
    """Bytes at the end that are not sent."""


@contextmanager
def serving(answer: Callable[[Request], Answer]) -> Iterator[str]:
    """Serve on 127.0.0.1 while the context lasts, one request after the other; yields the URL without a path."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._answer(b"")

        def do_POST(self) -> None:
            self._answer(self.rfile.read(int(self.headers["Content-Length"])))

        do_PUT = do_POST  # noqa: N815 - named by the library

        def log_message(self, *_: object) -> None:
            pass

        def _answer(self, body: bytes) -> None:
            status, content, num_missing_bytes = answer(Request(self.command, self.path, self.headers, body))
            self.send_response(status)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content[: len(content) - num_missing_bytes])

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join(_END_SECONDS)
