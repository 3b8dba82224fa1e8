"""The Kubernetes API of this pod's cluster, asked without its client, whose import takes seconds."""

from __future__ import annotations

import json
import os
import ssl
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from baton.errors import AuthenticationError, ConfigurationError, UnavailableError

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
"""Where Kubernetes puts a pod's token, namespace and the API server's authority."""
_CALL_SECONDS = 10.0
_PAUSE_SECONDS = 5.0
_FIRST_ERROR = 300
"""From this status on nothing was done: nobody is sent elsewhere."""
NOT_FOUND, CONFLICT = 404, 409
"""There is none; what there is already cannot be made, nor what has changed meanwhile be replaced."""


class RefusedError(UnavailableError):
    """The API server refuses; `status` is that of its answer."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True, slots=True)
class ApiServer:
    """Where the API server is, and by which account it is asked."""

    url: str
    """Without a path."""
    token: str = field(repr=False)
    authorities: Path | None = None
    """File of those that its certificate comes from; None: those that this machine believes."""
    namespace: str = ""

    @property
    def headers(self) -> dict[str, str]:
        """Return what every request has: who asks, and in what form."""
        return {"Authorization": f"Bearer {self.token}", "Content-Type": "application/json"}

    def connection(self, timeout_seconds: float) -> HTTPConnection:
        """Return a connection that is not made yet."""
        parts = urlsplit(self.url)
        if parts.scheme == "http":
            return HTTPConnection(parts.netloc, timeout=timeout_seconds)
        context = ssl.create_default_context(cafile=self.authorities)
        return HTTPSConnection(parts.netloc, timeout=timeout_seconds, context=context)

    def ask(self, path: str, body: object = None, *, method: str = "") -> bytes:
        """Return what a GET, or a method with a body, answers; raise RefusedError, or UnavailableError if silent."""
        data = None if body is None else json.dumps(body).encode("utf-8")
        try:
            with closing(self.connection(_CALL_SECONDS)) as connection:  # an authority's file may be gone, or broken
                connection.request(method or ("GET" if data is None else "POST"), path, data, self.headers)
                answer = connection.getresponse()
                content = answer.read()
        except (HTTPException, OSError) as error:
            raise UnavailableError(f"the API server cannot be reached: {error}") from error
        if answer.status >= _FIRST_ERROR:
            raise RefusedError(answer.status, f"the API server answered {answer.status} {answer.reason} for {path}")
        return content


def own_api_server(account: Path = ACCOUNT) -> ApiServer:
    """Return that of the cluster that this pod runs in, asked by its own account, or raise ConfigurationError."""
    try:
        host, port = os.environ["KUBERNETES_SERVICE_HOST"], os.environ["KUBERNETES_SERVICE_PORT"]
        token, namespace = ((account / name).read_text("ascii").strip() for name in ("token", "namespace"))
    except (KeyError, OSError) as error:
        raise ConfigurationError(f"asking Kubernetes needs a pod with an account: {error}") from error
    url = f"https://{f'[{host}]' if ':' in host else host}:{port}"
    return ApiServer(url, token, account / "ca.crt", namespace)


def read_service_account_keys() -> bytes:
    """Return the keys by which the cluster signs its accounts' tokens (a JSON Web Key Set), as any account may."""
    return own_api_server().ask("/openid/v1/jwks")


class ServiceAccountKeys:
    """Knows these keys by their ids; asks again when a token names another, for keys are replaced."""

    def __init__(
        self, read: Callable[[], bytes] = read_service_account_keys, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._read, self._clock = read, clock
        self._keys: Mapping[str, Mapping[str, Any]] = {}
        self._asked_at = -_PAUSE_SECONDS

    def key(self, key_id: str) -> Mapping[str, Any]:
        """Return a key, asking the server; raise AuthenticationError if it has none, UnavailableError if silent."""
        if key_id not in self._keys and self._clock() - self._asked_at >= _PAUSE_SECONDS:
            self._asked_at = self._clock()
            self._keys = {key["kid"]: key for key in json.loads(self._read())["keys"]}
        if key_id not in self._keys:
            raise AuthenticationError("the service account's token is of another cluster", reason="INVALID_JOIN_TOKEN")
        return self._keys[key_id]
