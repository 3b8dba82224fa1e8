"""Cross-origin requests: which web pages may read answers in a browser. None, unless origins are configured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from baton.gateway.http.messages import HttpRequest
from baton.gateway.http.response import HttpResponse

_ANY = "*"
_MAX_AGE_SECONDS = 600


class Cors:
    """Answers browsers by the Fetch standard (https://fetch.spec.whatwg.org/#http-cors-protocol); no cookies."""

    def __init__(self, origins: Sequence[str]) -> None:
        """Allow origins. Each as a browser writes it, e.g. "https://example.com", or "*" for any; empty: none."""
        self._origins = frozenset(origin.rstrip("/").lower() for origin in origins)

    def answer(self, request: HttpRequest, response: HttpResponse) -> bool:
        """Add the headers for an allowed origin; return whether that was all, as the request only asks what it may."""
        origin = request.headers.get("origin", "")
        if not origin or not ({_ANY, origin.lower()} & self._origins):
            return False
        response.headers["access-control-allow-origin"] = _ANY if _ANY in self._origins else origin
        response.headers["access-control-expose-headers"] = (
            "x-request-id, request-id, retry-after, grpc-status, grpc-message"
        )
        response.headers["vary"] = "origin"
        if request.method != "OPTIONS" or "access-control-request-method" not in request.headers:
            return False
        response.send(200, b"", headers=_permissions(request))
        return True


def _permissions(request: HttpRequest) -> Mapping[str, str]:
    """Return what an allowed page may send: any header it names, since the API ignores those that it does not know."""
    return {
        "access-control-allow-methods": "GET, POST, DELETE",
        "access-control-allow-headers": request.headers.get("access-control-request-headers", ""),
        "access-control-max-age": str(_MAX_AGE_SECONDS),
    }
