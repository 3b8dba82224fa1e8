"""Finding 4: a trailer, or what stands between chunks, outgrows every limit before anybody shows a key."""

from __future__ import annotations

from itertools import repeat

import pytest

from attacks.http.door import AUTHORIZED, HttpDoor, all_of, head
from attacks.victims import MIB, full
from baton.gateway.http.messages import HeldBytes, HttpError, RequestReader

CHUNKED = "transfer-encoding: chunked\r\n"
ENDLESS = {
    "trailer": b"2\r\n{}\r\n0\r\nx: ",
    "name of a trailer": b"2\r\n{}\r\n0\r\n",
    "extension of a chunk": b"2;x=",
    "size of a chunk": b"",
}
PIECES = {"size of a chunk": b"0" * 65536}
NUM_PIECES = 512
"""Of 64 KiB: 32 MiB."""


@full
@pytest.mark.parametrize("who", ["a stranger", "a client"])
@pytest.mark.parametrize("place", ENDLESS)
def test_no_line_grows_for_ever(gateway: HttpDoor, place: str, who: str) -> None:
    """It is refused after what a head may have; nobody else waits."""
    headers = CHUNKED + (AUTHORIZED if who == "a client" else "")
    with gateway.damage() as damage:
        piece = PIECES.get(place, b"y" * 65536)
        num_bytes, answer = gateway.pour(head(headers=headers) + ENDLESS[place], repeat(piece, NUM_PIECES))
    print(f"{place}, {who}: {num_bytes / MIB:.1f} MiB taken, {damage}")

    assert answer.startswith(b"HTTP/1.1 431" if who == "a client" else b"HTTP/1.1 401")
    assert num_bytes < 16 * MIB  # what kernels hold on the way
    assert damage.most_bytes < 16 * MIB
    assert damage.cpu_seconds < 0.5


@full
def test_a_trailer_shows_no_key(gateway: HttpDoor) -> None:
    """Who checks before the gateway has not seen it."""
    with gateway.connect() as connection:
        trailer = b"2\r\n{}\r\n0\r\n" + AUTHORIZED.encode() + b"\r\n"
        connection.sendall(head(headers=CHUNKED + "connection: close\r\n") + trailer)
        answer = all_of(connection)

    assert answer.startswith(b"HTTP/1.1 401")


def _feed(reader: RequestReader, pieces: list[bytes]) -> None:
    for piece in pieces:
        reader.feed(piece)


def _reader() -> RequestReader:
    return RequestReader(max_header_bytes=1024, max_body_bytes=1 << 20, held=HeldBytes(1 << 20))


@pytest.mark.parametrize("place", ENDLESS)
def test_what_is_no_body_is_counted(place: str) -> None:
    """A large body before it makes it no longer."""
    reader = _reader()
    reader.feed(head(headers=CHUNKED))
    assert not reader.feed(b"10000\r\n" + b"x" * 0x10000 + b"\r\n" + ENDLESS[place])

    with pytest.raises(HttpError, match="1024 bytes between parts of the body, or behind it") as refusal:
        _feed(reader, [PIECES.get(place, b"y")[:1] * 100] * 20)

    assert refusal.value.status == 431


def test_a_body_in_bytes_is_taken_unless_it_is_all_framing() -> None:
    """Clients may write each word by itself; a chunk for each letter is an attack."""
    reader = _reader()
    reader.feed(head(headers=CHUNKED))
    for _ in range(1000):
        reader.feed(b"6\r\nstrawb\r\n")
    [request] = reader.feed(b"0\r\n\r\n")
    assert request.body == b"strawb" * 1000

    reader.feed(head(headers=CHUNKED))
    with pytest.raises(HttpError):
        _feed(reader, [b"1\r\nx\r\n"] * 1000)


def test_trailers_are_dropped() -> None:
    """They come after the request was judged."""
    [request] = _reader().feed(head(headers=CHUNKED) + b"2\r\n{}\r\n0\r\nauthorization: Bearer x\r\nhost: b\r\n\r\n")

    assert request.body == b"{}"
    assert set(request.headers) == {"host", "content-type", "transfer-encoding"}
