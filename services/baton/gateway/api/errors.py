"""Answers other than 200: which of them each failure becomes, whichever API it is written for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import NamedTuple

from baton import errors
from baton.gateway.access.admission import RequestContext
from baton.gateway.access.key_limits import RETRY_AFTER_SECONDS
from baton.gateway.generation.preparation import ContextLengthError


class ApiError(Exception):
    """An answer other than 200. Each API writes it in its own form; see `ErrorFormat`."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        kind: str = "invalid_request_error",
        field: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """Make it.

        `kind` is whose fault it is, in the words of OpenAI's `type`; `field` is the parameter that is to blame, as its
        API calls it; `code` says to programs what went wrong.
        """
        super().__init__(message)
        self.status, self.message = status, message
        self.kind, self.field = kind, field
        self.code = code
        self.headers = headers or {}


class ErrorFormat(NamedTuple):
    """Writes errors in the form of one API; both functions take the error and the request that it ends."""

    body: Callable[[ApiError, RequestContext], bytes]
    event: Callable[[ApiError, RequestContext], bytes]
    """Returns the server-sent event that ends a stream."""


def refused(field: str, message: str, *, code: str | None = None) -> ApiError:
    """Return the error of a parameter that cannot be served."""
    return ApiError(400, message, field=field, code=code)


def invalid(field: str, problem: str) -> ApiError:
    """Return the error of a parameter whose value cannot be served."""
    return refused(field, f"Invalid value for `{field}`: {problem}", code="invalid_value")


def missing(field: str) -> ApiError:
    """Return the error of a parameter that is needed."""
    return refused(field, f"Missing required parameter: `{field}`", code="missing_required_parameter")


def unsupported(field: str, problem: str = "") -> ApiError:
    """Return the error of a parameter that others serve and Baton does not, or not with this value."""
    text = f"`{field}`: {problem}" if problem else f"`{field}` is not served here"
    return refused(field, f"Unsupported parameter: {text}", code="unsupported_parameter")


def to_api_error(error: Exception) -> ApiError | None:
    """Return the answer to an expected failure, or None if it is not one."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, RecursionError):
        return ApiError(400, "The body is nested too deeply", code="invalid_value")
    if isinstance(error, TimeoutError | asyncio.TimeoutError):
        return ApiError(504, "the request took too long", kind="server_error", code="timeout")
    return _from_baton_error(error) if isinstance(error, errors.BatonError) else None


def _from_baton_error(error: errors.BatonError) -> ApiError:
    if isinstance(error, ContextLengthError):
        return refused(error.field, error.problem, code="context_length_exceeded")
    if isinstance(error, errors.InvalidFieldError):
        return invalid(error.field, error.problem)
    if isinstance(error, errors.AuthenticationError):
        return ApiError(401, error.message, code="invalid_api_key", headers={"www-authenticate": "Bearer"})
    if isinstance(error, errors.NotFoundError):
        return ApiError(404, error.message, field="model", code="model_not_found")
    if isinstance(error, errors.OverloadedError):
        return _busy(429, error, "rate_limit_exceeded")
    if isinstance(error, errors.OutOfMemoryError):
        return ApiError(503, error.message, kind="server_error", code="out_of_memory")
    if isinstance(error, errors.MismatchError):
        return ApiError(503, error.message, kind="server_error", field=error.field, code=error.reason.lower())
    if isinstance(error, errors.QuarantinedError):
        return ApiError(422, error.message, code=error.reason.lower())
    if isinstance(error, errors.NonFiniteLogitsError | errors.PassFailedError | errors.ConstraintError):
        return ApiError(500, error.message, kind="server_error", code=error.reason.lower())
    if isinstance(error, errors.UnavailableError) and error.reason == "TOKEN_TIMEOUT":
        return ApiError(504, error.message, kind="server_error", code="token_timeout")
    return _busy(503, error, error.reason.lower())


def _busy(status: int, error: errors.BatonError, code: str) -> ApiError:
    headers = {"retry-after": error.metadata.get(RETRY_AFTER_SECONDS, "1")}
    kind = "rate_limit_error" if status == 429 else "server_error"
    return ApiError(status, error.message, kind=kind, code=code, headers=headers)
