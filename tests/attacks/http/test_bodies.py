"""Finding 10: bodies are read before a key is shown, and cost a multiple of their bytes."""

from __future__ import annotations

from itertools import repeat

import pytest

from attacks.http.door import AUTHORIZED, HttpDoor, head
from attacks.victims import MIB, full

CHUNKS = b"2\r\nxx\r\n" * 8192
BODIES = {
    "announced": ("content-length: 8388608\r\n", b"x" * 65536, 64),
    "in chunks of 2 bytes": ("transfer-encoding: chunked\r\n", CHUNKS, 256),
}


@full
@pytest.mark.parametrize("body", BODIES)
def test_a_stranger_is_refused_before_its_body(gateway: HttpDoor, body: str) -> None:
    """At the end of the head: nothing of it is kept."""
    headers, piece, num_pieces = BODIES[body]
    with gateway.damage() as damage:
        num_bytes, answer = gateway.pour(head(headers=headers), repeat(piece, num_pieces))
    print(f"{body}: {num_bytes / MIB:.1f} MiB taken, {damage}")

    assert answer.startswith(b"HTTP/1.1 401")
    assert damage.most_bytes < 8 * MIB


@full
def test_a_stranger_that_sends_no_body_is_answered_at_once(gateway: HttpDoor) -> None:
    """It cannot hold a connection for the time of a body."""
    assert gateway.answer(head(headers="content-length: 8388608\r\n")).startswith(b"HTTP/1.1 401")


@full
def test_a_client_pays_for_chunks_of_2_bytes(gateway: HttpDoor) -> None:
    """Bodies of which most is framing are refused soon: each chunk costs the event loop as much as an event."""
    with gateway.damage() as damage:
        num_bytes, answer = gateway.pour(
            head(headers="transfer-encoding: chunked\r\n" + AUTHORIZED), repeat(CHUNKS, 256)
        )
    print(f"{num_bytes / MIB:.1f} MiB taken, {damage}")

    assert answer.startswith(b"HTTP/1.1 431")
    assert damage.most_bytes < 8 * MIB
