"""A client of the gateway's HTTP port on raw sockets: what it sends and gets is bytes."""

from __future__ import annotations

import json
import socket
from typing import Any

from baton.gateway.server import RunningGateway
from gateway.fake_cluster import MODEL

PROMPT = [104, 105, 106]


def connect(gateway: RunningGateway) -> socket.socket:
    """Return a connection."""
    return socket.create_connection(("127.0.0.1", gateway.http_port), timeout=20)


def exchange(gateway: RunningGateway, data: bytes) -> bytes:
    """Send bytes and return everything until the server closes."""
    with connect(gateway) as connection:
        connection.sendall(data)
        return b"".join(iter(lambda: connection.recv(65536), b""))


def post(path: str, body: bytes, *headers: str) -> bytes:
    """Return the bytes of a POST of JSON."""
    lines = [
        f"POST {path} HTTP/1.1",
        "host: x",
        f"content-length: {len(body)}",
        "content-type: application/json",
        *headers,
    ]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def completion(**fields: Any) -> bytes:
    """Return the body of a request for a completion."""
    return json.dumps({"model": MODEL, "prompt": PROMPT, "max_tokens": 2, **fields}).encode()


def status_of(answer: bytes) -> int:
    """Return the status of the first answer."""
    return int(answer.split(b" ", 2)[1])
