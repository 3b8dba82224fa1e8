"""Anthropic's error objects."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from baton.gateway.access.admission import RequestContext
from baton.gateway.api.errors import ApiError, ErrorFormat

_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}
"""Anthropic's word for a status; below 500 others are the request's fault, from 500 on the server's."""


class ErrorDetail(msgspec.Struct):
    """What went wrong."""

    type: str
    message: str


class ErrorBody(msgspec.Struct):
    """Anthropic's error object."""

    error: ErrorDetail
    request_id: str
    type: str = "error"


def _body(error: ApiError, context: RequestContext) -> bytes:
    kind = _TYPES.get(error.status, "api_error" if error.status >= 500 else "invalid_request_error")
    return msgspec.json.encode(ErrorBody(ErrorDetail(kind, error.message), context.request_id))


def _event(error: ApiError, context: RequestContext) -> bytes:
    return b"event: error\ndata: " + _body(error, context) + b"\n\n"


def is_anthropic(headers: Mapping[str, str]) -> bool:
    """Return whether a request's headers are those of Anthropic's clients."""
    return "anthropic-version" in headers


ANTHROPIC_ERRORS = ErrorFormat(_body, _event)
