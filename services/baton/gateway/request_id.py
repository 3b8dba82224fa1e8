"""Names of requests: given by the client or made here, and unique within the cluster either way."""

from __future__ import annotations

import re
import secrets

from baton.errors import InvalidFieldError

HEADER = "x-request-id"

_ALLOWED = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,95}")


def accept_request_id(given: str) -> str:
    """Return the client's name of its request, or a random one if it gave none.

    Raises:
        InvalidFieldError: If it is not 1 to 96 letters, digits and "._:-", beginning with a letter or digit.
    """
    if not given:
        return secrets.token_hex(16)
    if not _ALLOWED.fullmatch(given):
        problem = 'expected 1 to 96 letters, digits and "._:-", beginning with a letter or digit'
        raise InvalidFieldError(HEADER, problem)
    return given


def generation_name(request_id: str) -> str:
    """Return the name that nodes see: it begins with the request's own, and no two requests share it."""
    return f"{request_id}.{secrets.token_hex(4)}"
