"""What a node sends to those who measure the link from it."""

from __future__ import annotations

from collections.abc import Iterator

from baton.errors import InvalidFieldError


def probe_sizes(byte_count: int, message_byte_count: int) -> Iterator[int]:
    """Return the payload sizes of a link probe, made as they are taken: there may be one for every byte.

    Raises:
        InvalidFieldError: If a count is out of range.
    """
    if not 0 <= byte_count <= 256 << 20:
        raise InvalidFieldError("byte_count", f"expected 0 to {256 << 20}, got {byte_count}")
    if not 0 <= message_byte_count <= 4 << 20:
        raise InvalidFieldError("message_byte_count", f"expected 0 to {4 << 20}, got {message_byte_count}")
    size = message_byte_count or 1 << 20
    return (min(size, byte_count - start) for start in range(0, byte_count, size))
