"""Finding 16: a page of evil.example, whose name its owner has pointed at this gateway, asks it (DNS rebinding)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from attacks.http.door import AUTHORIZED, HttpDoor, open_gateway
from attacks.victims import full

GET = "GET /v1/models HTTP/1.1\r\nhost: {}\r\nconnection: close\r\n{}\r\n"


@pytest.fixture
def door(model_dir: Path, tmp_path: Path) -> Iterator[HttpDoor]:
    """Run a gateway without keys: with them a page, which has none, learns nothing by any name."""
    with open_gateway(model_dir, tmp_path, has_keys=False) as door:
        yield door


@full
def test_a_name_that_is_not_the_gateways_is_refused(door: HttpDoor) -> None:
    """Without keys; addresses are served, and what lives there is told to anybody."""
    for host in ("evil.example", f"evil.example:{door.port}"):
        answer = door.answer(GET.format(host, AUTHORIZED).encode())
        assert answer.startswith(b"HTTP/1.1 421"), answer
        assert b"--allowed-hosts" in answer
    for host in (f"127.0.0.1:{door.port}", "localhost", "gateway"):
        assert b"HTTP/1.1 421" not in door.answer(GET.format(host, AUTHORIZED).encode())
    health = door.answer(GET.format("evil.example", "").replace("/v1/models", "/health").encode())

    assert health.startswith(b"HTTP/1.1 200")
