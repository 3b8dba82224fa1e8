"""A made-up gateway with the REST API that `baton chat` uses."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Gateway(BaseHTTPRequestHandler):
    """Answers with events chosen by the model's name."""

    protocol_version = "HTTP/1.0"
    key = ""
    """Key that is asked for; empty: none."""

    def do_GET(self) -> None:
        """List one model."""
        if not self._is_allowed():
            return
        self._answer(200, b'{"data": [{"id": "tiny"}]}')

    def do_POST(self) -> None:
        """Stream an answer, or fail."""
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if not self._is_allowed():
            return
        if body["model"] == "unknown":
            self._answer(404, b'{"error": {"message": "no model unknown"}}')
            return
        question = body["messages"][-1]["content"]
        events = [
            {"choices": [{"delta": {"role": "assistant", "content": ""}}], "usage": None},
            {"choices": [{"delta": {"content": question.upper()}}]},
        ]
        if body["model"] == "failing":
            events.append({"error": {"message": "node died"}})
        else:
            events.append({"choices": [], "usage": {"completion_tokens": 1}, "baton": {"decode_node": "d"}})
        lines = [b"data: " + json.dumps(event).encode() for event in events]
        if body["model"] != "cut":
            lines.append(b"data: [DONE]")
        self._answer(200, b"\n\n".join(lines) + b"\n\n")

    def log_message(self, *arguments: object) -> None:
        """Stay silent."""

    def _is_allowed(self) -> bool:
        if not self.key or self.headers["Authorization"] == f"Bearer {self.key}":
            return True
        self._answer(401, b'{"error": {"message": "no such key"}}')
        return False

    def _answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.end_headers()
        self.wfile.write(body)


@contextmanager
def running_gateway(*, key: str = "") -> Iterator[str]:
    """Serve and yield the address; with a key, to those who have it."""
    handler = type("KeyedGateway", (Gateway,), {"key": key})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()
