"""OpenAI's error objects, and which of them each failure becomes.

How an error is written, by the API that was asked.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import msgspec

from baton.errors import (
    AuthenticationError,
    BatonError,
    ConstraintError,
    InvalidFieldError,
    MismatchError,
    NonFiniteLogitsError,
    NotFoundError,
    OutOfMemoryError,
    OverloadedError,
    UnavailableError,
)
from baton.gateway.access.limits import RETRY_AFTER_SECONDS
from baton.gateway.access.request_context import RequestContext
from baton.gateway.generation.preparation import ContextLengthError
from baton.gateway.http.messages import HttpError

_REST_NAMES = {
    "max_token_count": "max_tokens",
    "min_token_count": "min_tokens",
    "top_logprob_count": "top_logprobs",
}
"""Names of fields in REST, where they differ from the proto's."""


class ApiError(Exception):
    """An answer other than 200."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        error_type: str = "invalid_request_error",
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.error_type = error_type
        self.param = param
        self.code = code
        self.headers = headers or {}

    def body(self) -> bytes:
        """Return the error object as JSON."""
        return msgspec.json.encode({"error": self._object()})

    def event(self) -> bytes:
        """Return the error object as a server-sent event, for a stream that has begun."""
        return b"data: " + self.body() + b"\n\n"

    def _object(self) -> dict[str, Any]:
        return {"message": self.message, "type": self.error_type, "param": self.param, "code": self.code}


def refused(param: str, message: str, *, code: str | None = None) -> ApiError:
    """Return the error of a parameter that cannot be served."""
    return ApiError(400, message, param=param, code=code)


def http_error_body(error: HttpError) -> bytes:
    """Return the body of an answer to a request that is no proper HTTP."""
    return ApiError(error.status, error.message).body()


def to_api_error(error: Exception) -> ApiError | None:
    """Return the answer to an expected failure, or None if it is not one."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, TimeoutError | asyncio.TimeoutError):
        return ApiError(504, "the request took too long", error_type="server_error", code="timeout")
    return _from_baton_error(error) if isinstance(error, BatonError) else None


def _from_baton_error(error: BatonError) -> ApiError:
    if isinstance(error, ContextLengthError):
        return refused(error.field, _without_field(error), code="context_length_exceeded")
    if isinstance(error, InvalidFieldError):
        return refused(_REST_NAMES.get(error.field, error.field), _without_field(error), code="invalid_value")
    if isinstance(error, AuthenticationError):
        return ApiError(401, error.message, code="invalid_api_key", headers={"www-authenticate": "Bearer"})
    if isinstance(error, NotFoundError):
        return ApiError(404, error.message, param="model", code="model_not_found")
    if isinstance(error, OverloadedError):
        return _busy(429, error, "rate_limit_exceeded")
    if isinstance(error, OutOfMemoryError):
        return ApiError(503, error.message, error_type="server_error", code="out_of_memory")
    if isinstance(error, MismatchError):
        return ApiError(503, error.message, error_type="server_error", param=error.field, code=error.reason.lower())
    if isinstance(error, NonFiniteLogitsError | ConstraintError):
        return ApiError(500, error.message, error_type="server_error", code=error.reason.lower())
    if isinstance(error, UnavailableError) and error.reason == "TOKEN_TIMEOUT":
        return ApiError(504, error.message, error_type="server_error", code="token_timeout")
    return _busy(503, error, error.reason.lower())


def _busy(status: int, error: BatonError, code: str) -> ApiError:
    headers = {"retry-after": error.metadata.get(RETRY_AFTER_SECONDS, "1")}
    error_type = "rate_limit_error" if status == 429 else "server_error"
    return ApiError(status, error.message, error_type=error_type, code=code, headers=headers)


def _without_field(error: InvalidFieldError) -> str:
    name = _REST_NAMES.get(error.field, error.field)
    problem = error.message.removeprefix(f"{error.field}: ")
    return problem if isinstance(error, ContextLengthError) else f"Invalid value for `{name}`: {problem}"


class ErrorFormat(NamedTuple):
    """Writes errors; both functions take the error and the request that it ends."""

    body: Callable[[ApiError, RequestContext], bytes]
    """Returns the body of an answer."""
    event: Callable[[ApiError, RequestContext], bytes]
    """Returns the server-sent event that ends a stream."""


OPENAI_ERRORS = ErrorFormat(lambda error, _: error.body(), lambda error, _: error.event())
