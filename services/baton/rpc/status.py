"""The one place that maps errors to gRPC status codes and back (google.rpc.Status with ErrorInfo)."""

from __future__ import annotations

import asyncio
from typing import NoReturn, cast

import grpc
from google.protobuf import duration_pb2
from google.protobuf.message import DecodeError
from google.rpc import error_details_pb2, status_pb2

from baton import errors
from baton.grpc_sockets.headers import SILENT

DOMAIN = "baton.dev"
"""ErrorInfo.domain of every error that Baton raises."""

_DETAILS_KEY = "grpc-status-details-bin"
_OF_CONNECTION = "connection"
"""Key in the metadata of an error that gRPC itself gave, and no peer: its message may name addresses."""

PEER_SILENT = "PEER_SILENT"
"""Reason of a call that ended because its peer gave no sign of life."""
GATEWAY_SILENT = "SILENT_GATEWAY"
"""Reason of what a node ended because its gateway, which asks again, gave none."""
MISSED_BEATS = 3
"""Messages that a gateway has promised, and that did not come, for which a node takes it for gone."""
_SILENCES = (SILENT, "keepalive watchdog timeout", "ping timeout")  # the others are in messages of grpcio

_CODES: dict[type[errors.BatonError], grpc.StatusCode] = {
    errors.InvalidFieldError: grpc.StatusCode.INVALID_ARGUMENT,
    errors.AuthenticationError: grpc.StatusCode.UNAUTHENTICATED,
    errors.ForbiddenError: grpc.StatusCode.PERMISSION_DENIED,
    errors.NotFoundError: grpc.StatusCode.NOT_FOUND,
    errors.MismatchError: grpc.StatusCode.FAILED_PRECONDITION,
    errors.OutOfMemoryError: grpc.StatusCode.RESOURCE_EXHAUSTED,
    errors.OverloadedError: grpc.StatusCode.RESOURCE_EXHAUSTED,
    errors.UnavailableError: grpc.StatusCode.UNAVAILABLE,
    errors.AttemptReusedError: grpc.StatusCode.ABORTED,
    errors.SupersededError: grpc.StatusCode.ABORTED,
    errors.StreamBrokenError: grpc.StatusCode.DATA_LOSS,
    errors.PassFailedError: grpc.StatusCode.INTERNAL,
    errors.QuarantinedError: grpc.StatusCode.FAILED_PRECONDITION,
    errors.NonFiniteLogitsError: grpc.StatusCode.INTERNAL,
    errors.ConstraintError: grpc.StatusCode.INTERNAL,
}

_CLASSES: dict[str, type[errors.BatonError]] = {
    "OUT_OF_MEMORY": errors.OutOfMemoryError,
    "QUEUE_FULL": errors.OverloadedError,
    "PROBE_BUSY": errors.OverloadedError,
    "OVERLOADED": errors.OverloadedError,
    "FAIR_SHARE": errors.OverloadedError,
    "KEY_CONCURRENCY": errors.OverloadedError,
    "KEY_RATE": errors.OverloadedError,
    "INVALID_API_KEY": errors.AuthenticationError,
    "INVALID_JOIN_TOKEN": errors.AuthenticationError,
    "JOIN_RATE": errors.OverloadedError,
    "NOT_ALLOWED": errors.ForbiddenError,
    "TRANSFER_NOT_GRANTED": errors.ForbiddenError,
    "ATTEMPT_REUSED": errors.AttemptReusedError,
    "NODE_SUPERSEDED": errors.SupersededError,
    "KV_STREAM_BROKEN": errors.StreamBrokenError,
    "PASS_FAILED": errors.PassFailedError,
    "QUARANTINED": errors.QuarantinedError,
    "NON_FINITE_LOGITS": errors.NonFiniteLogitsError,
    "STRUCTURED_OUTPUT_FAILED": errors.ConstraintError,
}


def code_of(error: errors.BatonError) -> grpc.StatusCode:
    """Return the status code of an error."""
    for error_class in type(error).__mro__:
        if error_class in _CODES:
            return _CODES[error_class]
    return grpc.StatusCode.INTERNAL


def status_of(error: BaseException) -> tuple[grpc.StatusCode, str]:
    """Return the status, and its text, with which a call ends that raises an error, at either end."""
    if isinstance(error, grpc.aio.AioRpcError):
        return error.code(), error.details() or ""
    if isinstance(error, errors.BatonError):
        return code_of(error), error.message
    is_cancelled = isinstance(error, asyncio.CancelledError | GeneratorExit)
    return grpc.StatusCode.CANCELLED if is_cancelled else grpc.StatusCode.UNKNOWN, type(error).__name__


async def abort(context: grpc.aio.ServicerContext[object, object], error: errors.BatonError) -> NoReturn:
    """End a call with the status of an error."""
    await context.abort(code_of(error), error.message, ((_DETAILS_KEY, details_of(error)),))
    raise AssertionError("abort returned")


def details_of(error: errors.BatonError) -> bytes:
    """Return the google.rpc.Status of an error, as it travels beside code and message."""
    info = error_details_pb2.ErrorInfo(reason=error.reason, domain=DOMAIN, metadata=error.metadata)
    status = status_pb2.Status(code=code_of(error).value[0], message=error.message)
    status.details.add().Pack(info)
    if isinstance(error, errors.InvalidFieldError):
        violation = error_details_pb2.BadRequest.FieldViolation(field=error.field, description=error.problem)
        status.details.add().Pack(error_details_pb2.BadRequest(field_violations=[violation]))
    if retry_after := error.metadata.get("retry_after_seconds"):
        status.details.add().Pack(
            error_details_pb2.RetryInfo(retry_delay=duration_pb2.Duration(seconds=int(retry_after)))
        )
    return cast(bytes, status.SerializeToString())


def error_info(error: grpc.aio.AioRpcError) -> error_details_pb2.ErrorInfo | None:
    """Return the ErrorInfo of a failed call, or None if the peer sent none."""
    for key, value in error.trailing_metadata() or ():
        if key == _DETAILS_KEY:
            return info_of(cast(bytes, value))
    return None


def info_of(details: bytes) -> error_details_pb2.ErrorInfo | None:
    """Return the ErrorInfo in a serialized google.rpc.Status, or None if it has none or is none."""
    try:
        status = status_pb2.Status.FromString(details)
    except DecodeError:
        return None
    for detail in status.details:
        info = error_details_pb2.ErrorInfo()
        if detail.Unpack(info):
            return info
    return None


def error_from_rpc(error: grpc.aio.AioRpcError) -> errors.BatonError:
    """Return the domain error of a failed call; connection failures and unknown ones become UnavailableError."""
    return error_from_status(error.code(), error.details() or "", error_info(error))


def error_from_status(
    code: grpc.StatusCode, details: str, info: error_details_pb2.ErrorInfo | None
) -> errors.BatonError:
    """Return the domain error of a call that ended with this code, message and ErrorInfo."""
    message = details or code.name
    if info is not None:
        return error_from_parts(code.value[0], message, info.reason, dict(info.metadata))
    reason = PEER_SILENT if any(sign in message for sign in _SILENCES) else code.name
    return errors.UnavailableError(message, reason=reason, metadata={_OF_CONNECTION: "failed"})


def without_address(error: errors.BatonError, message: str) -> errors.BatonError:
    """Return an error for clients, who need not learn where processes are: with a message of ours, if it is gRPC's."""
    return errors.UnavailableError(message, reason=error.reason) if is_of_connection(error) else error


def is_of_connection(error: errors.BatonError) -> bool:
    """Return whether gRPC itself gave an error, and no peer."""
    return _OF_CONNECTION in error.metadata


def error_from_parts(code: int, message: str, reason: str, metadata: dict[str, str]) -> errors.BatonError:
    """Return the domain error that a peer has described; unknown ones become UnavailableError."""
    if reason in _CLASSES:
        return _CLASSES[reason](message, reason=reason, metadata=metadata)
    if code == grpc.StatusCode.NOT_FOUND.value[0]:
        return errors.NotFoundError(message, reason=reason, metadata=metadata)
    if code == grpc.StatusCode.INVALID_ARGUMENT.value[0]:
        field = metadata.get("field", "request")
        return errors.InvalidFieldError(field, message.removeprefix(f"{field}: "))
    if code == grpc.StatusCode.FAILED_PRECONDITION.value[0]:
        return errors.MismatchError(
            metadata.get("field", "?"), metadata.get("expected"), metadata.get("actual"), reason=reason
        )
    return errors.UnavailableError(message, reason=reason, metadata=metadata)
