"""The headers and trailers of gRPC calls, and their compression (HPACK, RFC 7541)."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable, Mapping
from enum import IntEnum
from typing import NamedTuple
from urllib.parse import quote, unquote

import hpack

from baton.grpc_sockets.frames import ErrorCode, ProtocolError

SILENT = "the peer was silent"
"""How the message of a connection begins that ended because nothing came, not even an answer to a ping."""


class Code(IntEnum):
    """gRPC status codes."""

    OK = 0
    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    ABORTED = 10
    OUT_OF_RANGE = 11
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    DATA_LOSS = 15
    UNAUTHENTICATED = 16


class Status(NamedTuple):
    """What the trailers of a call say."""

    code: Code
    message: str = ""
    """For people; empty where the code says it all."""
    details: bytes = b""
    """A serialized google.rpc.Status; empty: none."""


OK = Status(Code.OK)


class CallError(Exception):
    """Ends a call with a status."""

    def __init__(self, code: Code, message: str, details: bytes = b"") -> None:
        super().__init__(f"{code.name}: {message}")
        self.status = Status(code, message, details)


DETAILS_KEY = "grpc-status-details-bin"
"""Trailer with a serialized google.rpc.Status."""

Metadata = Mapping[str, str | bytes]
"""Keys in lower case; those that end with -bin have bytes."""

_UNITS = {"n": 1e-9, "u": 1e-6, "m": 1e-3, "S": 1.0, "M": 60.0, "H": 3600.0}
_TIMEOUT = re.compile(r"([0-9]{1,8})([HMSmun])")
_LARGEST_TABLE_BYTES = 4096
_REFERENCE = 0x80
"""Bit of a byte that stands for a header of the table. Where every byte has it, a block leaves the table as it is: what
adds to it or resizes it begins without the bit, and longer references end without it."""
_MOST_KNOWN_BLOCKS = 64
_HTTP_CODES = {
    400: Code.INTERNAL,
    401: Code.UNAUTHENTICATED,
    403: Code.PERMISSION_DENIED,
    404: Code.UNIMPLEMENTED,
    429: Code.UNAVAILABLE,
    502: Code.UNAVAILABLE,
    503: Code.UNAVAILABLE,
    504: Code.UNAVAILABLE,
}
_RESET_CODES = {
    ErrorCode.REFUSED_STREAM: Code.UNAVAILABLE,
    ErrorCode.CANCEL: Code.CANCELLED,
    ErrorCode.ENHANCE_YOUR_CALM: Code.RESOURCE_EXHAUSTED,
}


class HeaderDecoder:
    """Reads header blocks of one connection, in their order."""

    def __init__(self, max_bytes: int) -> None:
        self._decoder = hpack.Decoder(max_header_list_size=max_bytes)
        self._known: dict[bytes, dict[str, str]] = {}  # blocks of references alone, until the table changes

    def decode(self, block: bytes) -> Mapping[str, str]:
        """Return a block's headers, those of a key joined by commas; raise ProtocolError if it is none or too large."""
        known = self._known.get(block)
        if known is not None:
            return known
        headers = self._decode(block)
        if min(block, default=0) >= _REFERENCE and len(self._known) < _MOST_KNOWN_BLOCKS:
            self._known[block] = headers
        else:
            self._known.clear()
        return headers

    def _decode(self, block: bytes) -> dict[str, str]:
        try:
            pairs = list(self._decoder.decode(block, raw=True))
        except (hpack.HPACKError, IndexError, ValueError) as error:
            code = ErrorCode.COMPRESSION_ERROR
            raise ProtocolError(code, f"a header block cannot be read: {type(error).__name__}") from error
        headers: dict[str, str] = {}
        for raw_key, raw_value in pairs:
            key, value = bytes(raw_key).decode("latin-1"), bytes(raw_value).decode("latin-1")
            headers[key] = f"{headers[key]},{value}" if key in headers else value
        return headers


class HeaderEncoder:
    """Writes header blocks of one connection, in their order."""

    def __init__(self) -> None:
        self._encoder = hpack.Encoder()

    def limit_table(self, num_bytes: int) -> None:
        """Keep to the peer's setting for the dynamic table."""
        self._encoder.header_table_size = min(num_bytes, _LARGEST_TABLE_BYTES)

    def encode(self, headers: Iterable[tuple[str, str]]) -> bytes:
        """Return a header block."""
        return self._encoder.encode(headers)


def fixed_block(headers: Iterable[tuple[str, str]]) -> bytes:
    """Return a header block that means the same anywhere on any connection: it does without the table."""
    literals = [hpack.NeverIndexedHeaderTuple(key, value) for key, value in headers]
    return hpack.Encoder().encode(literals, huffman=False)


def request_headers(
    path: str, authority: str, scheme: str, metadata: Metadata, timeout_seconds: float | None
) -> list[tuple[str, str]]:
    """Return the headers of a call."""
    headers = [
        (":method", "POST"),
        (":scheme", scheme),
        (":path", path),
        (":authority", authority),
        ("te", "trailers"),
        ("content-type", "application/grpc"),
        ("user-agent", "baton-h2/1"),
    ]
    if timeout_seconds is not None:
        headers.append(("grpc-timeout", _timeout_text(timeout_seconds)))
    headers += ((key, _encoded(value)) for key, value in metadata.items())
    return headers


RESPONSE_HEADERS = [(":status", "200"), ("content-type", "application/grpc")]


def trailers_of(status: Status) -> list[tuple[str, str]]:
    """Return the trailers of a call's end."""
    trailers = [("grpc-status", str(int(status.code)))]
    if status.message:
        trailers.append(("grpc-message", quote(status.message, safe=" !\"#$&'()*+,/:;<=>?@[\\]^_`{|}~")))
    if status.details:
        trailers.append((DETAILS_KEY, _encoded(status.details)))
    return trailers


def status_of(trailers: Mapping[str, str]) -> Status:
    """Return what trailers say; without a status that is known, UNKNOWN."""
    number = trailers.get("grpc-status", "")
    code = Code(int(number)) if number.isascii() and number.isdigit() and int(number) <= max(Code) else Code.UNKNOWN
    message = unquote(trailers.get("grpc-message", ""), errors="replace")
    try:
        details = _decoded(trailers.get(DETAILS_KEY, ""))
    except CallError:
        details = b""
    return Status(code, message or ("" if number else "the call ended without a status"), details)


def check_response(headers: Mapping[str, str]) -> None:
    """Check that headers begin the response of a gRPC call; raise CallError if they are another protocol's."""
    http_status, content_type = headers.get(":status", ""), headers.get("content-type", "")
    if http_status != "200":
        code = _HTTP_CODES.get(int(http_status) if http_status.isdigit() else 0, Code.UNKNOWN)
        raise CallError(code, f"the peer answered with HTTP status {http_status[:16]!r}")
    if not content_type.startswith("application/grpc"):
        raise CallError(Code.UNKNOWN, f"the peer answered with content type {content_type[:64]!r}")
    if headers.get("grpc-encoding", "identity") != "identity":
        raise CallError(Code.INTERNAL, "the peer compresses messages, which was not offered")


def reset_status(code: int) -> Status:
    """Return how a call ended that the peer has reset."""
    name = ErrorCode(code).name if code in set(ErrorCode) else str(code)
    return Status(
        _RESET_CODES.get(ErrorCode(code), Code.INTERNAL) if code in set(ErrorCode) else Code.INTERNAL,
        f"the peer reset the stream: {name}",
    )


def timeout_of(headers: Mapping[str, str]) -> float | None:
    """Return the time that a caller gives, seconds; None: as long as it takes. Raises CallError if it is unreadable."""
    text = headers.get("grpc-timeout")
    if text is None:
        return None
    match = _TIMEOUT.fullmatch(text)
    if match is None:
        raise CallError(Code.INTERNAL, f"grpc-timeout: expected up to 8 digits and a unit, got {text[:32]!r}")
    return int(match[1]) * _UNITS[match[2]]


def metadata_of(headers: Mapping[str, str]) -> dict[str, str | bytes]:
    """Return what a caller has sent beyond the protocol's headers; raise CallError if a binary value is not base64."""
    own = {key: value for key, value in headers.items() if not key.startswith((":", "grpc-"))}
    return {key: _decoded(value) if key.endswith("-bin") else value for key, value in own.items()}


def _timeout_text(seconds: float) -> str:
    for unit, size in (("u", 1e-6), ("m", 1e-3), ("S", 1.0)):
        if seconds / size < 1e8:
            return f"{max(0, int(seconds / size))}{unit}"
    return "99999999H"


def _encoded(value: str | bytes) -> str:
    return base64.b64encode(value).decode().rstrip("=") if isinstance(value, bytes) else value


def _decoded(text: str) -> bytes:
    first = text.partition(",")[0]
    try:
        return base64.b64decode(first + "=" * (-len(first) % 4), validate=True)
    except ValueError as error:
        raise CallError(Code.INTERNAL, "a binary header is not base64") from error
