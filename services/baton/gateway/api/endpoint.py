"""An endpoint of the REST API: its row in the table of routes, and one request to it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple, TypeAlias

import msgspec

from baton.gateway.access.admission import RequestContext
from baton.gateway.api.errors import ApiError, ErrorFormat, unsupported
from baton.gateway.api.tolerance import Unserved
from baton.gateway.http.messages import HttpRequest
from baton.gateway.http.response import HttpResponse

MAX_IGNORED = 32
"""Names of fields that an answer tells of."""
MAX_NAME_CHARACTERS = 128


class Access(Enum):
    """Who may ask an endpoint."""

    OPEN = "open"
    KEY = "key"
    """Whoever has an API key, where there are keys."""
    ADMIN = "admin"
    """Whoever has an API key of an administrator, where there are keys."""


@dataclass(slots=True)
class Exchange:
    """A request on its way to the endpoint that answers it."""

    request: HttpRequest
    response: HttpResponse
    """Where the answer goes."""
    context: RequestContext
    """What is known of it, and what the access log is told."""
    body: Any = None
    """The request's body, decoded as the endpoint's type."""
    is_strict: bool = False
    """Whether the request is refused where something of it would be left out."""

    def ignore(self, name: str, error: ApiError | None = None) -> None:
        """Leave out what the request asks for, and say so in the answer.

        `name` is without indices; `error` refuses where nothing may be left out, None: as a parameter that is not
        served. Raises ApiError 400 if nothing may be left out.
        """
        if self.is_strict:
            raise error or unsupported(name)
        ignored = self.context.ignored
        if len(ignored) < MAX_IGNORED and name not in ignored:
            ignored.append(name[:MAX_NAME_CHARACTERS])

    def ignore_tool(self, param: str, kind: str) -> None:
        """Leave out a tool that is no function of the client's; see `ignore`."""
        self.ignore(f"tools[{kind}]", unsupported(f"{param}.type", f"only functions are served, got `{kind[:64]}`"))


Answer: TypeAlias = Callable[[Exchange], Awaitable[None]]
"""Answers a request; its errors are the REST API's to write."""


class Endpoint(NamedTuple):
    """How a method of a path is served."""

    method: str
    """GET also serves HEAD."""
    path: str
    """A name in braces at its end stands for the rest of the path."""
    answer: Answer
    summary: str = ""
    """What it is for, in the OpenAPI document; empty: the document does not tell of it."""
    returns: Any = dict[str, Any]
    body: type[msgspec.Struct] | None = None
    """What it takes; None: no body."""
    unserved: Unserved = Unserved()
    operation: str = ""
    """Name of what it does, for what costs work: such requests are admitted, traced and limited; empty: no such."""
    errors: ErrorFormat | None = None
    """How its errors are written; None: as Anthropic writes them for its clients, as OpenAI does for all others."""
    request_id_header: str = ""
    """Where the clients of its API look for the name of the request, beside `x-request-id`."""
    access: Access = Access.KEY
    parameters: Sequence[Mapping[str, Any]] = ()
    """Parameters of path and query, as OpenAPI has them."""
