"""EndpointSlices over HTTP, by the Kubernetes client; its calls block, so each watch has a thread of its own."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncGenerator, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from baton.discovery.endpoints import GONE, Event, ExpiredError, Listing, WatchError, event_of, listing_of
from baton.discovery.target import ServiceTarget
from baton.errors import ConfigurationError

_NAMESPACE_FILE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
_CONNECT_SECONDS = 5.0
_READ_SLACK_SECONDS = 4.0
_LIST_SECONDS = 10.0
_CHUNK_BYTES = 1 << 16
_MAX_LINE_BYTES = 16 << 20


class KubernetesEndpointApi:
    """Lists and watches the slices of one Service.

    Args:
        configuration: A `kubernetes.client.Configuration`.
        target: The Service; its namespace is given.
    """

    def __init__(self, configuration: Any, target: ServiceTarget) -> None:
        from kubernetes.client import ApiClient, DiscoveryV1Api

        configuration.retries = False
        self._target = target
        self._slices = DiscoveryV1Api(ApiClient(configuration))

    async def list_slices(self) -> Listing:
        """Return all slices of the Service (see `EndpointApi`)."""
        response = await asyncio.to_thread(self._open, _LIST_SECONDS)
        try:
            document = json.loads(await asyncio.to_thread(_read_all, response))
        except ValueError as error:
            raise WatchError(f"the API server sent no JSON: {error}") from error
        return listing_of(document, self._target.port)

    async def watch_slices(self, resource_version: str, seconds: float) -> AsyncGenerator[Event, None]:
        """Yield what changes (see `EndpointApi`). Closing it ends the request at once."""
        loop = asyncio.get_running_loop()
        executor = ThreadPoolExecutor(1, thread_name_prefix="endpoint-watch")
        opening = loop.run_in_executor(
            executor,
            lambda: self._open(
                seconds + _READ_SLACK_SECONDS,
                watch=True,
                allow_watch_bookmarks=True,
                resource_version=resource_version,
                timeout_seconds=max(1, round(seconds)),
            ),
        )
        try:
            response = await asyncio.shield(opening)
            lines = _lines(response)
            while (line := await loop.run_in_executor(executor, _next_line, lines)) is not None:
                yield event_of(_parsed(line), self._target.port)
        finally:
            # Also where the request was still being made: its thread ends, and the response that it brings is closed.
            opening.add_done_callback(_end)
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


def in_cluster_api(target: ServiceTarget) -> KubernetesEndpointApi:
    """Return the API of the cluster that this pod runs in, with its own account.

    Raises:
        ConfigurationError: If this is no pod with an account, or the Kubernetes client is not installed.
    """
    configuration = in_cluster_configuration()
    try:
        namespace = target.namespace or _NAMESPACE_FILE.read_text("utf-8").strip()
    except OSError as error:
        raise ConfigurationError(f"kubernetes:// addresses need a pod with an account: {error}") from error
    return KubernetesEndpointApi(configuration, ServiceTarget(target.service, namespace, target.port))


def in_cluster_configuration() -> Any:
    """Return the `kubernetes.client.Configuration` of this pod's own account.

    Raises:
        ConfigurationError: If this is no pod with an account, or the Kubernetes client is not installed.
    """
    try:
        from kubernetes.client import Configuration
        from kubernetes.config import ConfigException, load_incluster_config
    except ModuleNotFoundError as error:
        raise ConfigurationError("asking Kubernetes needs its client: install baton[kubernetes]") from error
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


def _end(opening: asyncio.Future[Any]) -> None:
    """Cut a response off, so that a thread that reads it returns."""
    if opening.cancelled() or opening.exception() is not None:
        return
    response = opening.result()
    with contextlib.suppress(ValueError, OSError):  # it has ended already
        response.shutdown()
    response.close()
