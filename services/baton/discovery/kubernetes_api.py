"""EndpointSlices over HTTP; a watch blocks, so each has a thread of its own."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncGenerator, Callable
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection, HTTPException, HTTPResponse
from urllib.parse import urlencode

from baton.discovery import endpoints
from baton.discovery.api_server import ApiServer, RefusedError, own_api_server
from baton.errors import BatonError

_CONNECT_SECONDS = 5.0
_READ_SLACK_SECONDS = 4.0
_MAX_LINE_BYTES = 16 << 20


class KubernetesEndpointApi:
    """Lists and watches the slices of one Service. `server` is asked for each time: its token is replaced."""

    def __init__(self, server: Callable[[], ApiServer], target: endpoints.ServiceTarget) -> None:
        self._server, self._target = server, target

    async def list_slices(self) -> endpoints.Listing:
        """Return all slices of the Service; raise WatchError if the server cannot be asked."""
        return endpoints.listing_of(_parsed(await asyncio.to_thread(self._list)), self._target.port)

    async def watch_slices(self, resource_version: str, seconds: float) -> AsyncGenerator[endpoints.Event, None]:
        """Yield what changes after a version, for some time. Closing it ends the request at once.

        Raises ExpiredError if the version is forgotten, else WatchError.
        """
        loop = asyncio.get_running_loop()
        executor = ThreadPoolExecutor(1, thread_name_prefix="endpoint-watch")
        options = {
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": resource_version,
            "timeoutSeconds": max(1, round(seconds)),
        }
        request = _WatchRequest(self._server, lambda server: self._path(server, options), seconds + _READ_SLACK_SECONDS)
        try:
            while (line := await loop.run_in_executor(executor, request.next_line)) is not None:
                yield endpoints.event_of(_parsed(line), self._target.port)
        finally:
            request.end()
            executor.shutdown(wait=False)

    def _list(self) -> bytes:
        try:
            server = self._server()
            return server.ask(self._path(server, {}))
        except RefusedError as error:
            raise _status_error(error.status, error.message) from error
        except BatonError as error:
            raise endpoints.WatchError(error.message) from error

    def _path(self, server: ApiServer, options: dict[str, object]) -> str:
        namespace = self._target.namespace or server.namespace
        query = urlencode({"labelSelector": f"kubernetes.io/service-name={self._target.service}", **options})
        return f"/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices?{query}"


class _WatchRequest:
    """One watch, made and read in a thread by `next_line`; any other may `end` it, whatever that thread waits for."""

    def __init__(self, server: Callable[[], ApiServer], path: Callable[[ApiServer], str], read_seconds: float) -> None:
        self._server, self._path = server, path
        self._read_seconds = read_seconds
        self._connection: HTTPConnection | None = None
        self._response: HTTPResponse | None = None
        self._is_over = False

    def next_line(self) -> bytes | None:
        """Return the next whole line; None after the last. Raises WatchError, ExpiredError as `watch_slices` has it."""
        try:
            self._response = self._response or self._opened()
            while line := self._response.readline(_MAX_LINE_BYTES + 1):
                if len(line) > _MAX_LINE_BYTES:
                    raise endpoints.WatchError(f"the API server sent a line of more than {_MAX_LINE_BYTES} bytes")
                if line.endswith(b"\n") and line.strip():  # a stream that ends within a line has said nothing by it
                    return line
        except (HTTPException, OSError) as error:
            raise endpoints.WatchError(f"the watch broke off: {error}") from error
        return None

    def end(self) -> None:
        """Cut it off: who reads returns, and a connection that is being made is closed when it stands."""
        self._is_over = True
        if self._connection is not None:
            _close(self._connection)

    def _opened(self) -> HTTPResponse:
        try:
            server = self._server()
        except BatonError as error:
            raise endpoints.WatchError(error.message) from error
        self._connection = connection = server.connection(_CONNECT_SECONDS)
        connection.connect()
        connection.auto_open = 0  # one that `end` has closed is not to be made anew
        sock = connection.sock
        if self._is_over:
            _close(connection)
            raise endpoints.WatchError("the watch was given up")
        sock.settimeout(self._read_seconds)
        connection.request("GET", self._path(server), headers=server.headers)
        response = connection.getresponse()
        if response.status != 200:
            raise _status_error(response.status, f"the API server answered {response.status} {response.reason}")
        return response


def in_cluster_api(target: endpoints.ServiceTarget) -> KubernetesEndpointApi:
    """Return the API of the cluster that this pod runs in, with its own account; else raise ConfigurationError."""
    own_api_server()
    return KubernetesEndpointApi(own_api_server, target)


def _status_error(status: int, message: str) -> endpoints.WatchError:
    return (endpoints.ExpiredError if status == endpoints.GONE else endpoints.WatchError)(message)


def _parsed(data: bytes) -> dict[str, object]:
    try:
        document: dict[str, object] = json.loads(data)
    except ValueError as error:
        raise endpoints.WatchError(f"the API server sent no JSON: {error}") from error
    return document


def _close(connection: HTTPConnection) -> None:
    if connection.sock is not None:
        with contextlib.suppress(OSError):  # it has ended already
            connection.sock.shutdown(socket.SHUT_RDWR)
    connection.close()
