"""How a call ends."""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

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
