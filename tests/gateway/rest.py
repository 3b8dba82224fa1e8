"""Plain HTTP to a gateway."""

from __future__ import annotations

import http.client
import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from baton.gateway.server import RunningGateway

_TIMEOUT_SECONDS = 20.0


class Reply(NamedTuple):
    """An answer."""

    status: int
    data: bytes
    """The body as it came."""
    headers: Mapping[str, str]
    """By lower-case name."""

    @property
    def body(self) -> Any:
        """Return the body, parsed."""
        return json.loads(self.data)

    @property
    def error(self) -> tuple[int, str | None, str | None]:
        """Return status, param and code of OpenAI's error object."""
        return self.status, self.body["error"]["param"], self.body["error"]["code"]


def ask(
    gateway: RunningGateway,
    path: str,
    body: object = None,
    *,
    method: str = "",
    headers: Mapping[str, str] | None = None,
) -> Reply:
    """Send one request, with a JSON body if there is one, and return its answer."""
    connection = http.client.HTTPConnection("127.0.0.1", gateway.http_port, timeout=_TIMEOUT_SECONDS)
    data = None if body is None else json.dumps(body).encode()
    fields = {} if body is None else {"content-type": "application/json"}
    try:
        connection.request(method or ("GET" if body is None else "POST"), path, data, {**fields, **(headers or {})})
        response = connection.getresponse()
        answer = response.read()
        return Reply(response.status, answer, {name.lower(): value for name, value in response.getheaders()})
    finally:
        connection.close()
