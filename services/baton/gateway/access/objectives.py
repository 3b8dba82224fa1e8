"""What a client wants of one request's latency, as headers of REST or metadata of gRPC say it."""

from __future__ import annotations

from collections.abc import Mapping

from baton.capacity.objectives import TPOT_BOUNDS_SECONDS, TTFT_BOUNDS_SECONDS, Objectives
from baton.errors import InvalidFieldError

TTFT_HEADER = "x-baton-ttft-seconds"
"""Time to first token within which the request is good."""
TPOT_HEADER = "x-baton-tpot-seconds"
"""Mean time per output token within which it is."""

_BOUNDS = {TTFT_HEADER: TTFT_BOUNDS_SECONDS, TPOT_HEADER: TPOT_BOUNDS_SECONDS}
_MAX_CHARACTERS = 32


def objectives_of(headers: Mapping[str, str]) -> Objectives:
    """Return what headers, by lower-case name, say.

    Raises:
        InvalidFieldError: Naming the header that is no number or out of range.
    """
    return Objectives(_seconds(headers, TTFT_HEADER), _seconds(headers, TPOT_HEADER))


def _seconds(headers: Mapping[str, str], name: str) -> float:
    text = headers.get(name)
    if text is None:
        return 0.0
    low, high = _BOUNDS[name]
    try:
        seconds = float(text[:_MAX_CHARACTERS])
    except ValueError:
        seconds = 0.0
    if not low <= seconds <= high:  # also refuses NaN
        given = text[:_MAX_CHARACTERS]
        raise InvalidFieldError(name, f"expected a number of seconds, {low:g} to {high:g}, got {given!r}")
    return seconds
