"""What a gRPC call was refused with."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import grpc
from google.rpc import error_details_pb2, status_pb2

_TIMEOUT_SECONDS = 120.0


class Refusal(NamedTuple):
    """Status and google.rpc.ErrorInfo of a failed call."""

    code: str
    reason: str
    field: str
    """Empty where none is to blame."""


def refusal_of(call: Callable[..., Any], request: object) -> Refusal:
    """Return what a call is refused with.

    Args:
        call: A method of a stub, unary or streaming.
        request: Its request, or an iterator of them.

    Raises:
        AssertionError: If it is answered.
    """
    try:
        answer = call(request, timeout=_TIMEOUT_SECONDS)
        raise AssertionError(f"answered with {list(answer) if isinstance(answer, Iterable) else answer}")
    except grpc.RpcError as error:
        info = _error_info(error)
        return Refusal(error.code().name, info.reason, info.metadata.get("field", ""))  # type: ignore[attr-defined]


def _error_info(error: grpc.RpcError) -> error_details_pb2.ErrorInfo:
    info = error_details_pb2.ErrorInfo()
    for key, value in error.trailing_metadata() or ():  # type: ignore[attr-defined]
        if key == "grpc-status-details-bin":
            status_pb2.Status.FromString(value).details[0].Unpack(info)
    return info
