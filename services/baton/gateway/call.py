"""One REST request from its arrival to its end: what its answer needs, and what the access log tells of it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Call:
    """A request on its way. The REST API fills in who asks; the endpoint adds what it generated."""

    request_id: str = ""
    """Name of the request, the client's own or a random one."""
    body: bytes = b""
    """Complete body."""
    arrival_seconds: float = 0.0
    """When the request was complete, by the event loop's clock."""
    key_name: str = ""
    """Name of the API key; empty without keys."""
    num_prompt_tokens: int = 0
    """Tokens of all prompts."""
    num_completion_tokens: int = 0
    """Tokens generated, those of broken answers included."""
    first_token_seconds: float | None = None
    """When the first token came, by the event loop's clock."""
