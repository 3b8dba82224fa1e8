"""Headers and trailers of gRPC, back and forth."""

from __future__ import annotations

import hpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from baton.grpc_sockets.frames import ErrorCode
from baton.grpc_sockets.headers import (
    CallError,
    Code,
    HeaderDecoder,
    Status,
    fixed_block,
    metadata_of,
    request_headers,
    reset_status,
    status_of,
    timeout_of,
    trailers_of,
)


@given(st.sampled_from(Code), st.text(max_size=60), st.binary(max_size=60))
def test_any_status_survives(code: Code, message: str, details: bytes) -> None:
    """Whatever the message's alphabet; on the wire it is printable ASCII."""
    message = message.encode("utf-8", "replace").decode()
    trailers = dict(trailers_of(Status(code, message, details)))

    assert all(" " <= letter <= "~" for value in trailers.values() for letter in value)
    assert status_of(trailers) == Status(code, message, details)


@given(st.dictionaries(st.sampled_from(["grpc-status", "grpc-message", "grpc-status-details-bin"]), st.text()))
def test_any_trailers_are_some_status(trailers: dict[str, str]) -> None:
    """What cannot be read is UNKNOWN, never an exception."""
    assert status_of(trailers).code in Code


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("5S", 5), ("1500m", 1.5), ("2M", 120), ("1H", 3600), ("7u", 7e-6), ("99999999n", 0.099999999)],
)
def test_timeouts_are_read_in_every_unit(text: str, seconds: float) -> None:
    """As the gRPC protocol defines them."""
    assert timeout_of({"grpc-timeout": text}) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "S", "5", "123456789S", "-1S", "1.5S", "5X"])
def test_a_timeout_that_is_none_is_refused(text: str) -> None:
    """By its name."""
    with pytest.raises(CallError, match="grpc-timeout"):
        timeout_of({"grpc-timeout": text})


@given(st.floats(0, 1e12))
def test_a_timeout_arrives_no_longer_than_it_was(seconds: float) -> None:
    """A deadline may come early by rounding, never late."""
    headers = dict(request_headers("/a/b", "host", "http", {}, seconds))
    arrived = timeout_of(headers)

    assert arrived is not None
    assert arrived <= seconds * (1 + 1e-9) or seconds > 99999998
    assert arrived >= min(seconds, 9e7) * 0.99 - 1e-6


def test_metadata_are_what_is_not_the_protocols() -> None:
    """Binary ones as bytes, with or without padding."""
    headers = dict(request_headers("/a/b", "host", "http", {"traceparent": "00", "x-bin": b"\xff\x00\x01\x02"}, 3))
    metadata = metadata_of(headers)

    assert metadata["traceparent"] == "00"
    assert metadata["x-bin"] == b"\xff\x00\x01\x02"
    assert metadata_of({"x-bin": "/wABAg=="}) == metadata_of({"x-bin": "/wABAg"})
    assert not any(key.startswith((":", "grpc-")) for key in metadata)


@pytest.mark.parametrize(
    ("code", "status"),
    [
        (ErrorCode.CANCEL, Code.CANCELLED),
        (ErrorCode.REFUSED_STREAM, Code.UNAVAILABLE),
        (0, Code.INTERNAL),
        (999, Code.INTERNAL),
    ],
)
def test_a_reset_is_a_status(code: int, status: Code) -> None:
    """As grpc.io's table maps them."""
    assert reset_status(code).code is status


HEADERS = st.lists(
    st.tuples(st.sampled_from(["a", "b", "grpc-status", ":status"]), st.sampled_from(["", "0", "13", "200", "x" * 90])),
    max_size=4,
)
BLOCKS = st.lists(st.tuples(HEADERS, st.booleans(), st.none() | st.sampled_from([0, 64, 4096])), max_size=30)


@given(BLOCKS)
def test_blocks_mean_what_the_table_says_however_often_they_come(
    blocks: list[tuple[list[tuple[str, str]], bool, int | None]],
) -> None:
    """Also where the table has changed or was resized between two equal blocks."""
    encoder, decoder = hpack.Encoder(), HeaderDecoder(1 << 16)
    for headers, is_compressed, table_bytes in blocks:
        if table_bytes is not None:
            encoder.header_table_size = table_bytes
        expected: dict[str, str] = {}
        for key, value in headers:
            expected[key] = f"{expected[key]},{value}" if key in expected else value

        assert decoder.decode(encoder.encode(headers, huffman=is_compressed)) == expected


@given(HEADERS, HEADERS)
def test_a_fixed_block_means_the_same_anywhere(headers: list[tuple[str, str]], others: list[tuple[str, str]]) -> None:
    """Between blocks that use the table, twice, and joined to another."""
    encoder, decoder = hpack.Encoder(), HeaderDecoder(1 << 16)
    block = fixed_block([("first", "1"), *headers])
    alone = decoder.decode(block)
    decoder.decode(encoder.encode(others))

    assert decoder.decode(block) == alone
    assert decoder.decode(block + fixed_block([("last", "2")])) == {**alone, "last": "2"}
    assert alone["first"] == "1"
