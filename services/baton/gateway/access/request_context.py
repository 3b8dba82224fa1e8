"""One request from its arrival to its end: what its answer needs, and what the access log tells of it.

Names of requests: given by the client or made here, and unique within the cluster either way.

What logs and metrics learn of each request, whatever becomes of it.
"""

from __future__ import annotations

import logging
import re
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from baton.errors import InvalidFieldError
from baton.telemetry.metrics import Metrics

CANCELLED = "499"
"""Status of a request whose client went before its answer was complete; nginx's number."""


@dataclass(slots=True)
class RequestContext:
    """A request on its way. The API fills in who asks and what became of it; generations add what they generated."""

    route: str = ""
    """Path or method that serves it, without what varies; empty if there is none."""

    request_id: str = ""
    """Name of the request, the client's own or a random one."""
    body: bytes = b""
    """Complete body; empty over gRPC."""
    arrival_seconds: float = 0.0
    """When the request was complete, by the event loop's clock."""
    status: str = CANCELLED
    """HTTP status, or name of the gRPC status; of a stream that broke off, the one that it began with."""
    error_code: str = ""
    """Code of the error that ended it; empty if it was served."""
    key_name: str = ""
    """Name of the API key; empty without keys."""
    num_prompt_tokens: int = 0
    """Tokens of all prompts."""
    num_completion_tokens: int = 0
    """Tokens generated, those of broken answers included."""
    num_events: int = 0
    """Events of the stream so far, where the API numbers them."""
    first_token_seconds: float | None = None
    """When the first token came, by the event loop's clock."""


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


log = logging.getLogger(__name__)


class AccessLog:
    """Watches requests of both APIs."""

    def __init__(self, metrics: Metrics, clock: Callable[[], float]) -> None:
        """Make it.

        Args:
            metrics: Where requests are counted.
            clock: The event loop's.
        """
        self._metrics = metrics
        self._clock = clock

    @contextmanager
    def watch(self, call: RequestContext) -> Iterator[None]:
        """Watch one request from here to its end; its `status` is then what the client saw of it."""
        call.arrival_seconds = self._clock()
        self._metrics.add_active_requests(1)
        try:
            yield
        finally:
            self._metrics.add_active_requests(-1)
            seconds = self._clock() - call.arrival_seconds
            self._metrics.record_request(seconds, call.route or "unknown", call.status)
            if log.isEnabledFor(logging.DEBUG):
                log.debug(_line(call, seconds))


def _line(call: RequestContext, seconds: float) -> str:
    first = call.first_token_seconds
    first_text = f"{first - call.arrival_seconds:.4f}" if first is not None else "-"
    return (
        f"request_ended request={call.request_id or '-'} key={call.key_name or '-'} route={call.route or '-'} "
        f"status={call.status} error={call.error_code or '-'} seconds={seconds:.4f} first_token_seconds={first_text} "
        f"prompt_tokens={call.num_prompt_tokens} completion_tokens={call.num_completion_tokens}"
    )
