"""/metrics of a process without other HTTP, on a thread of its own: a scrape never waits for the event loop."""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict

from baton.errors import ConfigurationError
from baton.telemetry.prometheus import Scrape, content_type

log = logging.getLogger(__name__)

_MAX_IDLE_SECONDS = 10.0
_MAX_CONNECTIONS = 32
"""A thread each; one more ends the oldest, however it drips."""


class MetricsSettings(BaseSettings):
    """Settings of services that serve their metrics."""

    model_config = SettingsConfigDict(use_attribute_docstrings=True)

    group: ClassVar[str] = "Metrics"

    metrics_port: int = Field(default=0, ge=0, le=65535)
    """Port of /metrics, in Prometheus's formats and without TLS, on the address of the service; 0: none."""


@contextmanager
def serving_metrics(scrape: Scrape, host: str, port: int) -> Iterator[int]:
    """Serve metrics as long as the context lasts; yield the port. Raises ConfigurationError if it cannot be bound."""
    try:
        server = _Server((host, port), partial(_Handler, scrape))
    except OSError as error:
        raise ConfigurationError(f"metrics_port: cannot listen on {host}:{port}: {error.strerror}") from error
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, name="metrics", daemon=True)
    thread.start()
    log.info("metrics_served address=%s:%d", host, server.server_port)
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Server(ThreadingHTTPServer):
    """Bounds its connections."""

    request_queue_size = 128  # of five, which the base class lets wait, the sixth would come again a second later

    def __init__(self, *args: Any) -> None:
        self._connections: list[Any] = []
        super().__init__(*args)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer a connection in a thread."""
        self._connections.append(request)
        if len(self._connections) > _MAX_CONNECTIONS:
            with suppress(OSError):
                self._connections.pop(0).shutdown(socket.SHUT_RDWR)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        """End a connection."""
        with suppress(ValueError):
            self._connections.remove(request)
        super().shutdown_request(request)


class _Handler(BaseHTTPRequestHandler):
    """Answers one connection."""

    protocol_version = "HTTP/1.1"
    timeout = _MAX_IDLE_SECONDS

    def __init__(self, scrape: Scrape, *args: object) -> None:
        self._scrape = scrape
        super().__init__(*args)  # type: ignore[arg-type] # those of the server's call, passed on

    def do_GET(self) -> None:
        """Answer with all metrics."""
        is_found = self.path.partition("?")[0] == "/metrics"
        accept = self.headers.get("accept", "")
        body = self._scrape.text(accept) if is_found else b"metrics are at /metrics\n"
        self.send_response(200 if is_found else 404)
        self.send_header("content-type", content_type(accept) if is_found else "text/plain; charset=utf-8")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        try:
            self.wfile.write(body)
        except ConnectionError:
            log.debug("scrape_given_up by=%s", self.client_address[0])

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - named by the base class
        """Write no line per scrape."""
