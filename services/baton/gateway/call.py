"""One request from its arrival to its end: what its answer needs, and what the access log tells of it."""

from __future__ import annotations

from dataclasses import dataclass

CANCELLED = "499"
"""Status of a request whose client went before its answer was complete; nginx's number."""


@dataclass(slots=True)
class Call:
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
