"""EndpointSlices over HTTP, by the Kubernetes client; its calls block, so each watch has a thread of its own."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
from collections.abc import AsyncGenerator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

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
from baton.errors import ConfigurationError
from baton.installation import install_line

_NAMESPACE_FILE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
_CONNECT_SECONDS = 5.0
_READ_SLACK_SECONDS = 4.0
_LIST_SECONDS = 10.0
_CHUNK_BYTES = 1 << 16
_MAX_LINE_BYTES = 16 << 20


class KubernetesEndpointApi:
    """Lists and watches the slices of one Service."""

    def __init__(self, configuration: Any, target: ServiceTarget) -> None:
        from kubernetes.client import ApiClient, DiscoveryV1Api

        configuration.retries = False
        self._target = target
        self._slices = DiscoveryV1Api(ApiClient(configuration))

    async def list_slices(self) -> Listing:
        """Return all slices of the Service (see `EndpointApi`)."""
        opening = _Opening(partial(self._open, _LIST_SECONDS))
        try:
            response = await asyncio.to_thread(opening.run)
            document = json.loads(await asyncio.to_thread(_read_all, response))
        except ValueError as error:
            raise WatchError(f"the API server sent no JSON: {error}") from error
        finally:
            opening.end()
        return listing_of(document, self._target.port)

    async def watch_slices(self, resource_version: str, seconds: float) -> AsyncGenerator[Event, None]:
        """Yield what changes (see `EndpointApi`). Closing it ends the request at once."""
        loop = asyncio.get_running_loop()
        executor = ThreadPoolExecutor(1, thread_name_prefix="endpoint-watch")
        opening = _Opening(
            partial(
                self._open,
                seconds + _READ_SLACK_SECONDS,
                watch=True,
                allow_watch_bookmarks=True,
                resource_version=resource_version,
                timeout_seconds=max(1, round(seconds)),
            )
        )
        try:
            lines = _lines(await loop.run_in_executor(executor, opening.run))
            while (line := await loop.run_in_executor(executor, _next_line, lines)) is not None:
                yield event_of(_parsed(line), self._target.port)
        finally:
            opening.end()
            executor.shutdown(wait=False)

    def _open(self, read_seconds: float, **options: object) -> Any:
        from kubernetes.client import ApiException
        from urllib3.exceptions import HTTPError

        try:
            response = self._slices.list_namespaced_endpoint_slice(
                self._target.namespace,
                label_selector=f"kubernetes.io/service-name={self._target.service}",
                _preload_content=False,
                _request_timeout=(_CONNECT_SECONDS, read_seconds),
                **options,
            )
        except ApiException as error:
            raise _status_error(error.status, str(error.reason)) from error
        except (HTTPError, OSError) as error:
            raise WatchError(f"the API server cannot be reached: {error}") from error
        if response.status != 200:
            response.close()
            raise _status_error(response.status, str(response.reason))
        return response


class _Opening:
    """A request that is being made in a thread; its response is closed by whoever comes last, that thread or `end`."""

    def __init__(self, request: Callable[[], Any]) -> None:
        self._request = request
        self._lock = threading.Lock()
        self._response: Any = None
        self._is_over = False

    def run(self) -> Any:
        """Return the response; in the thread. Where nobody wants it any more it is closed."""
        response = self._request()
        with self._lock:
            self._response = response
            is_over = self._is_over
        if is_over:
            _cut_off(response)
        return response

    def end(self) -> None:
        """Close the response, or have it closed when it comes, after the event loop's end too."""
        with self._lock:
            self._is_over = True
            response = self._response
        if response is not None:
            _cut_off(response)


def in_cluster_api(target: ServiceTarget) -> KubernetesEndpointApi:
    """Return the API of the cluster that this pod runs in, with its own account.

    Raises ConfigurationError if this is no pod with an account, or the Kubernetes client is not installed.
    """
    configuration = in_cluster_configuration()
    try:
        namespace = target.namespace or _NAMESPACE_FILE.read_text("utf-8").strip()
    except OSError as error:
        raise ConfigurationError(f"kubernetes:// addresses need a pod with an account: {error}") from error
    return KubernetesEndpointApi(configuration, ServiceTarget(target.service, namespace, target.port))


def in_cluster_configuration() -> Any:
    """Return the `kubernetes.client.Configuration` of this pod's own account, or raise ConfigurationError."""
    try:
        from kubernetes.client import Configuration
        from kubernetes.config import ConfigException, load_incluster_config
    except ModuleNotFoundError as error:
        raise ConfigurationError(f"asking Kubernetes needs its client: {install_line('kubernetes')}") from error
    configuration = Configuration()
    try:
        load_incluster_config(client_configuration=configuration)
    except (ConfigException, OSError) as error:
        raise ConfigurationError(f"asking Kubernetes needs a pod with an account: {error}") from error
    return configuration


def _status_error(status: int, reason: str) -> WatchError:
    error_class = ExpiredError if status == GONE else WatchError
    return error_class(f"the API server answered {status} {reason}")


def _read_all(response: Any) -> bytes:
    from urllib3.exceptions import HTTPError

    try:
        content: bytes = response.read()
    except (HTTPError, OSError) as error:
        raise WatchError(f"the list broke off: {error}") from error
    finally:
        response.release_conn()
    return content


def _lines(response: Any) -> Iterator[bytes]:
    """Yield whole lines as they come; what is left of a stream that ends within a line is dropped."""
    rest = b""
    for chunk in response.stream(_CHUNK_BYTES):
        *lines, rest = (rest + chunk).split(b"\n")
        yield from lines
        if len(rest) > _MAX_LINE_BYTES:
            raise WatchError(f"the API server sent a line of more than {_MAX_LINE_BYTES} bytes")


def _next_line(lines: Iterator[bytes]) -> bytes | None:
    from urllib3.exceptions import HTTPError

    try:
        return next((line for line in lines if line.strip()), None)
    except (HTTPError, OSError) as error:
        raise WatchError(f"the watch broke off: {error}") from error


def _parsed(line: bytes) -> Any:
    try:
        return json.loads(line)
    except ValueError as error:
        raise WatchError(f"the API server sent no JSON: {error}") from error


def _cut_off(response: Any) -> None:
    """End a response, so that a thread that reads it returns."""
    with contextlib.suppress(ValueError, RuntimeError, OSError):  # it has ended already
        response.shutdown()
    response.close()
