"""/metrics of processes that serve no HTTP otherwise."""

from __future__ import annotations

import http.client
import socket
import threading
from contextlib import ExitStack

import pytest

from baton.errors import ConfigurationError
from baton.telemetry.metrics_server import serving_metrics
from baton.telemetry.prometheus import scraped_meter


def _get(port: int, path: str, accept: str = "*/*") -> tuple[int, str, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.request("GET", path, headers={"accept": accept})
        answer = connection.getresponse()
        return answer.status, answer.headers["content-type"], answer.read()
    finally:
        connection.close()


def test_metrics_are_served_in_the_format_that_is_asked_for() -> None:
    """Both, and nothing at other paths."""
    with scraped_meter() as (meter, scrape), serving_metrics(scrape, "127.0.0.1", 0) as port:
        meter.create_counter("a.count", description="How often.").add(2)
        plain, open_metrics = _get(port, "/metrics"), _get(port, "/metrics", "application/openmetrics-text")
        other = _get(port, "/")

    text = b"# HELP a_count_total How often.\n# TYPE a_count_total counter\na_count_total 2\n"
    assert plain == (200, "text/plain; version=0.0.4; charset=utf-8", text)
    assert open_metrics[1].startswith("application/openmetrics-text")
    assert open_metrics[2].endswith(b"# EOF\n")
    assert other[0] == 404


def test_connections_that_drip_keep_nobody_out() -> None:
    """Nor do they have a thread each: the oldest goes where there are too many."""
    with scraped_meter() as (_, scrape), serving_metrics(scrape, "127.0.0.1", 0) as port, ExitStack() as stack:
        begun, dripping = threading.active_count(), []
        for _ in range(100):
            dripping.append(stack.enter_context(socket.create_connection(("127.0.0.1", port), 10)))
            dripping[-1].sendall(b"GET /metrics HTTP/1.1\r\nx: ")
        answer = _get(port, "/metrics")
        ended = [connection.recv(1) for connection in dripping[:60]]
        num_threads = threading.active_count() - begun

    assert answer[0] == 200
    assert ended == [b""] * 60
    assert num_threads <= 40


def test_a_port_in_use_is_named() -> None:
    """Before anything is served."""
    with socket.create_server(("127.0.0.1", 0)) as taken, scraped_meter() as (_, scrape):
        port = taken.getsockname()[1]
        with (
            pytest.raises(ConfigurationError, match=f"metrics_port.*{port}"),
            serving_metrics(scrape, "127.0.0.1", port),
        ):
            pass
