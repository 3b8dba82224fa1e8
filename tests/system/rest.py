"""Plain HTTP to a cluster's gateway, for what no client library would send."""

from __future__ import annotations

import http.client
import json
import socket
from collections.abc import Mapping
from typing import Any, NamedTuple

from system.cluster import Cluster
from system.plan import MODEL_NAME

CHAT: Mapping[str, Any] = {
    "model": MODEL_NAME,
    "messages": [{"role": "user", "content": "What is 12 + 30?"}],
    "max_tokens": 4,
    "temperature": 0,
}
COMPLETION: Mapping[str, Any] = {"model": MODEL_NAME, "prompt": "abc", "max_tokens": 4, "temperature": 0}
CHAT_PATH, COMPLETION_PATH = "/v1/chat/completions", "/v1/completions"

_JSON = {"content-type": "application/json"}
_TIMEOUT_SECONDS = 60.0


class Reply(NamedTuple):
    """An answer."""

    status: int
    body: Any
    """Parsed; None where there is none."""
    headers: Mapping[str, str]
    """By lower-case name."""

    @property
    def error(self) -> tuple[int, str | None, str | None]:
        """Return status, param and code; the body must be a complete error object."""
        assert self.body.keys() == {"error"}
        assert self.body["error"].keys() == {"message", "type", "param", "code"}
        assert self.body["error"]["message"]
        return self.status, self.body["error"]["param"], self.body["error"]["code"]


def ask(
    cluster: Cluster,
    path: str,
    body: bytes | None,
    *,
    method: str = "POST",
    headers: Mapping[str, str] = _JSON,
) -> Reply:
    """Send one request and return its answer."""
    connection = http.client.HTTPConnection(*cluster.http_address, timeout=_TIMEOUT_SECONDS)
    try:
        connection.request(method, path, body, dict(headers))
        response = connection.getresponse()
        data = response.read()
        fields = {name.lower(): value for name, value in response.getheaders()}
        return Reply(response.status, json.loads(data) if data else None, fields)
    finally:
        connection.close()


def post(cluster: Cluster, path: str, body: object) -> Reply:
    """Send a body as JSON."""
    return ask(cluster, path, json.dumps(body).encode())


def num_active_requests(cluster: Cluster) -> int:
    """Return how many requests the gateway is answering, this question among them."""
    connection = http.client.HTTPConnection(*cluster.http_address, timeout=_TIMEOUT_SECONDS)
    try:
        connection.request("GET", "/metrics")
        lines = connection.getresponse().read().decode().splitlines()
    finally:
        connection.close()
    return next(int(float(line.split()[-1])) for line in lines if line.startswith("baton_gateway_active_requests "))


def send_bytes(cluster: Cluster, data: bytes) -> bytes:
    """Send bytes over a connection of their own and return all that comes back until the gateway closes it."""
    with socket.create_connection(cluster.http_address, timeout=_TIMEOUT_SECONDS) as connection:
        connection.sendall(data)
        answer = b""
        while part := connection.recv(65_536):
            answer += part
        return answer
