"""An endpoint of the REST API: its row in the table of routes, and one request to it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple, TypeAlias

import msgspec

from baton.gateway.access.admission import RequestContext
from baton.gateway.api.errors import ErrorFormat
from baton.gateway.http.messages import HttpRequest
from baton.gateway.http.response import HttpResponse


class Access(Enum):
    """Who may ask an endpoint."""

    OPEN = "open"
    """Everybody."""
    KEY = "key"
    """Whoever has an API key, where there are keys."""
    ADMIN = "admin"
    """Whoever has an API key of an administrator, where there are keys."""


@dataclass(slots=True)
class Exchange:
    """A request on its way to the endpoint that answers it."""

    request: HttpRequest
    """As it came."""
    response: HttpResponse
    """Where the answer goes."""
    context: RequestContext
    """What is known of it, and what the access log is told."""
    body: Any = None
    """The request's body, decoded as the endpoint's type."""


Answer: TypeAlias = Callable[[Exchange], Awaitable[None]]
"""Answers a request; its errors are the REST API's to write."""


class Endpoint(NamedTuple):
    """How a method of a path is served."""

    method: str
    """GET also serves HEAD."""
    path: str
    """A name in braces at its end stands for the rest of the path."""
    answer: Answer
    """Answers."""
    summary: str = ""
    """What it is for, in the OpenAPI document; empty: the document does not tell of it."""
    returns: Any = dict[str, Any]
    """Type of its answer's body."""
    body: type[msgspec.Struct] | None = None
    """What it takes; None: no body."""
    neutral_values: Mapping[str, tuple[object, ...]] = {}
    """Fields of the body that are not served, and values of them (beside null) that ask for nothing."""
    span: str = ""
    """Name of its span, for what costs work: such requests are admitted, traced and limited in time; empty: no such."""
    errors: ErrorFormat | None = None
    """How its errors are written; None: as OpenAI writes them."""
    request_id_header: str = ""
    """Where the clients of its API look for the name of the request, beside `x-request-id`."""
    access: Access = Access.KEY
    """Who may ask."""
    parameters: Sequence[Mapping[str, Any]] = ()
    """Parameters of path and query, as OpenAPI has them."""
