"""What names a request on every node, its part of the prefix cache, its turn; checked before anything is logged."""

from __future__ import annotations

from baton.errors import InvalidFieldError

MAX_REQUEST_ID_CHARACTERS = 128
MAX_CACHE_SALT_BYTES = 128
MAX_PRIORITY = 100
"""Bound of a priority, and of its negative."""


def check_identity(request_id: str, attempt: int, cache_salt: str) -> None:
    """Check the names of a request.

    Raises:
        InvalidFieldError: If the id is empty, too long or would break a line of the log, the attempt is below 1, or
            the salt is too long.
    """
    if not 1 <= len(request_id) <= MAX_REQUEST_ID_CHARACTERS or not request_id.isprintable():
        raise InvalidFieldError("request_id", f"expected 1 to {MAX_REQUEST_ID_CHARACTERS} printable characters")
    if attempt < 1:
        raise InvalidFieldError("attempt", f"expected 1 or more, got {attempt}")
    if len(cache_salt.encode()) > MAX_CACHE_SALT_BYTES:
        raise InvalidFieldError("cache_salt", f"expected at most {MAX_CACHE_SALT_BYTES} bytes")


def check_priority(priority: int) -> None:
    """Check whose turn a request is.

    Raises:
        InvalidFieldError: If the priority is out of range.
    """
    if abs(priority) > MAX_PRIORITY:
        raise InvalidFieldError("priority", f"expected {-MAX_PRIORITY} to {MAX_PRIORITY}, got {priority}")
