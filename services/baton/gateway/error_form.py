"""How an error is written, by the API that was asked."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from baton.gateway.call import Call
from baton.gateway.openai_errors import ApiError


class ErrorForm(NamedTuple):
    """Writes errors; both functions take the error and the request that it ends."""

    body: Callable[[ApiError, Call], bytes]
    """Returns the body of an answer."""
    event: Callable[[ApiError, Call], bytes]
    """Returns the server-sent event that ends a stream."""


OPENAI_ERRORS = ErrorForm(lambda error, _: error.body(), lambda error, _: error.event())
