"""EndpointSlices over HTTP; calls to the API server block, so each watch has a thread of its own."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import socket
from collections.abc import AsyncGenerator, Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from http.client import HTTPException, HTTPResponse
from typing import Any
from urllib.parse import urlencode

from baton.discovery.api_server import ApiServer, RefusedError, own_api_server
from baton.discovery.endpoints import (
    GONE,
    Event,
    ExpiredError,
    Listing,
    ServiceTarget,
    WatchError,
    event_of,
    listing_of,
)
from baton.errors import ConfigurationError, UnavailableError

log = logging.getLogger(__name__)

_READ_SLACK_SECONDS = 4.0
_LIST_SECONDS = 10.0
_MAX_LINE_BYTES = 16 << 20


class KubernetesEndpointApi:
    """Lists and watches the slices of one Service.

    `server` is asked before every question, for a pod's token is replaced from time to time; what it raises at first,
    ConfigurationError outside a pod with an account, is raised here.
    """

    def __init__(self, target: ServiceTarget, server: Callable[[], ApiServer] = own_api_server) -> None:
        self._server = server
        self._port = target.port
        namespace = server().namespace
        self._path = f"/apis/discovery.k8s.io/v1/namespaces/{target.namespace or namespace}/endpointslices"
        self._selector = f"kubernetes.io/service-name={target.service}"

    async def list_slices(self) -> Listing:
        """Return all slices of the Service (see `EndpointApi`)."""
        return await asyncio.to_thread(self._list)

    async def watch_slices(self, resource_version: str, seconds: float) -> AsyncGenerator[Event, None]:
        """Yield what changes (see `EndpointApi`). Closing it ends the request at once."""
        loop = asyncio.get_running_loop()
        executor = ThreadPoolExecutor(1, thread_name_prefix="endpoint-watch")
        options = {"resourceVersion": resource_version, "timeoutSeconds": max(1, round(seconds))}
        opening = executor.submit(
            self._open, seconds + _READ_SLACK_SECONDS, watch="true", allowWatchBookmarks="true", **options
        )
        try:
            answer = await asyncio.wrap_future(opening)
            while line := await loop.run_in_executor(executor, _next_line, answer):
                yield event_of(_parsed(line), self._port)
        finally:
            opening.add_done_callback(_cut_off)  # where it is still under way, in its thread: the loop may have ended
            executor.shutdown(wait=False)

    def _list(self) -> Listing:
        with closing(self._open(_LIST_SECONDS)) as answer:
            try:
                content = answer.read()
            except (OSError, HTTPException) as error:
                raise WatchError(f"the list broke off: {error!r}") from error
        return listing_of(_parsed(content), self._port)

    def _open(self, read_seconds: float, **options: object) -> HTTPResponse:
        path = f"{self._path}?{urlencode({'labelSelector': self._selector, **options})}"
        try:
            return self._server().open(path, read_seconds=read_seconds)
        except RefusedError as error:
            raise (ExpiredError if error.status == GONE else WatchError)(error.message) from error
        except (UnavailableError, ConfigurationError) as error:
            raise WatchError(error.message) from error


def _next_line(answer: HTTPResponse) -> bytes:
    """Return a line that is not blank; empty at the end, where of a line that is not whole nothing is kept."""
    try:
        while (line := answer.readline(_MAX_LINE_BYTES)).endswith(b"\n"):
            if line.strip():
                return line
    except (OSError, HTTPException) as error:
        raise WatchError(f"the watch broke off: {error!r}") from error
    if len(line) == _MAX_LINE_BYTES:
        raise WatchError(f"the API server sent a line of more than {_MAX_LINE_BYTES} bytes")
    return b""


def _parsed(content: bytes) -> Any:
    try:
        return json.loads(content)
    except ValueError as error:
        raise WatchError(f"the API server sent no JSON: {error}") from error


def _cut_off(opening: Future[HTTPResponse]) -> None:
    """End a response, if there is one, so that a thread that reads it returns."""
    if opening.cancelled() or opening.exception() is not None:
        return
    answer = opening.result()
    try:
        with socket.socket(fileno=os.dup(answer.fileno())) as same:
            same.shutdown(socket.SHUT_RDWR)
    except (ValueError, OSError, AttributeError):
        log.debug("watch_had_ended")
    answer.close()
