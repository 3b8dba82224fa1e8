"""OpenAI's error objects, which endpoints without an API of their own use as well."""

from __future__ import annotations

import msgspec

from baton.gateway.access.admission import RequestContext
from baton.gateway.api.errors import ApiError, ErrorFormat
from baton.gateway.http.messages import HttpError


class ErrorObject(msgspec.Struct):
    """What is wrong, and with which parameter."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorAnswer(msgspec.Struct):
    """OpenAI's error object."""

    error: ErrorObject


def error_body(error: ApiError, _: RequestContext | None = None) -> bytes:
    """Return the body of an answer."""
    return msgspec.json.encode(ErrorAnswer(ErrorObject(error.message, error.kind, error.field, error.code)))


def http_error_body(error: HttpError) -> bytes:
    """Return the body of an answer to a request that is no proper HTTP."""
    return error_body(ApiError(error.status, error.message))


OPENAI_ERRORS = ErrorFormat(error_body, lambda error, _: b"data: " + error_body(error) + b"\n\n")
