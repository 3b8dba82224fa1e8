"""The state of a watch on EndpointSlices: what the API server said, applied in order. Pure.

Source: https://kubernetes.io/docs/reference/using-api/api-concepts (efficient detection of changes, 410 Gone,
bookmarks); https://kubernetes.io/docs/concepts/services-networking/endpoint-slices (conditions, duplicates).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from baton.errors import BatonError, ConfigurationError
from baton.rpc.server import host_port

_SCHEME = "kubernetes://"
_NAME = r"[a-z0-9]([a-z0-9-]*[a-z0-9])?"
_SERVICE = re.compile(rf"(?P<service>{_NAME})(\.(?P<namespace>{_NAME}))?:(?P<port>{_NAME})")


@dataclass(frozen=True, slots=True)
class ServiceTarget:
    """The pods behind a Kubernetes Service."""

    service: str
    namespace: str
    """Its namespace; empty: that of this pod."""
    port: str
    """Name of a port of the Service, or number of the pods' port."""


def parse_target(text: str) -> frozenset[str] | ServiceTarget:
    """Return what `HOST:PORT[,..]` or `kubernetes://SERVICE[.NAMESPACE]:PORT` says; ConfigurationError for others."""
    if text.startswith(_SCHEME):
        match = _SERVICE.fullmatch(text.removeprefix(_SCHEME))
        if match is None:
            raise ConfigurationError(f"{text}: expected {_SCHEME}SERVICE[.NAMESPACE]:PORT, PORT a name or a number")
        return ServiceTarget(match["service"], match["namespace"] or "", match["port"])
    addresses = frozenset(part.strip() for part in text.split(",") if part.strip())
    wrong = [address for address in addresses if not re.search(r":[0-9]+$", address)]
    if wrong or not addresses:
        raise ConfigurationError(f"{text!r}: expected host:port[,host:port] or {_SCHEME}SERVICE[.NAMESPACE]:PORT")
    return addresses


GONE = 410
"""Status of a resource version that the server has forgotten."""


class WatchError(BatonError):
    """The API server could not be asked, or said what cannot be understood."""

    reason = "DISCOVERY_FAILED"


class ExpiredError(WatchError):
    """The server has forgotten the version from which a watch should go on: only a new list helps."""

    reason = "DISCOVERY_EXPIRED"


@dataclass(frozen=True, slots=True)
class Slice:
    """One EndpointSlice, as far as it matters."""

    name: str
    addresses: frozenset[str]
    """host:port of its endpoints that take work."""


class Listing(NamedTuple):
    """What a list request gave."""

    slices: Sequence[Slice]
    resource_version: str
    """Where a watch goes on."""


class Event(NamedTuple):
    """One line of a watch."""

    kind: str
    """ADDED, MODIFIED, DELETED or BOOKMARK."""
    resource_version: str
    """Where a watch goes on after it."""
    slice: Slice | None
    """What it is about; None for a bookmark."""


class EndpointState:
    """A Service's slices: `addresses` is the union, `resource_version` that of the last thing applied."""

    def __init__(self) -> None:
        self.resource_version = ""
        self._slices: dict[str, Slice] = {}

    @property
    def addresses(self) -> frozenset[str]:
        """Return every address once; two slices may hold the same for a moment while it moves between them."""
        return frozenset(address for each in self._slices.values() for address in each.addresses)

    def replace(self, listing: Listing) -> None:
        """Take a list: what it does not name is gone."""
        self._slices = {each.name: each for each in listing.slices}
        self.resource_version = listing.resource_version

    def apply(self, event: Event) -> None:
        """Take an event. One that comes twice changes nothing the second time."""
        if event.slice is not None and event.kind == "DELETED":
            self._slices.pop(event.slice.name, None)
        elif event.slice is not None:
            self._slices[event.slice.name] = event.slice
        self.resource_version = event.resource_version or self.resource_version


def listing_of(document: Mapping[str, Any], port: str) -> Listing:
    """Return a list response's content, or raise WatchError."""
    try:
        version = str(document["metadata"]["resourceVersion"])
        return Listing([_slice_of(item, port) for item in document.get("items") or ()], version)
    except (KeyError, TypeError, AttributeError) as error:
        raise WatchError(f"the API server sent no list of EndpointSlices: {error!r}") from error


def event_of(document: Mapping[str, Any], port: str) -> Event:
    """Return a watch event; raise ExpiredError if the watch's version is forgotten, else WatchError if it is none."""
    try:
        kind, content = document["type"], document["object"]
        if kind == "ERROR":
            error_class = ExpiredError if content.get("code") == GONE else WatchError
            raise error_class(f"the watch ended with {content.get('code')}: {content.get('message')}")
        if kind not in ("ADDED", "MODIFIED", "DELETED", "BOOKMARK"):
            raise WatchError(f"the API server sent an event of an unknown kind, {kind!r}")
        version = str(content["metadata"]["resourceVersion"])
        return Event(kind, version, None if kind == "BOOKMARK" else _slice_of(content, port))
    except (KeyError, TypeError, AttributeError) as error:
        raise WatchError(f"the API server sent what is no event: {error!r}") from error


def _slice_of(document: Mapping[str, Any], port: str) -> Slice:
    numbers = [
        each["port"] for each in document.get("ports") or () if port in (each.get("name"), str(each.get("port")))
    ]
    addresses = [
        host_port(address, number)
        for endpoint in document.get("endpoints") or ()
        if _takes_work(endpoint.get("conditions") or {})
        for address in (endpoint.get("addresses") or [])[:1]  # further ones are the same endpoint, Kubernetes says
        for number in numbers
    ]
    return Slice(document["metadata"]["name"], frozenset(addresses))


def _takes_work(conditions: Mapping[str, Any]) -> bool:
    """Return whether an endpoint is ready, or goes and still serves; unknown is yes, as Kubernetes defines it."""
    if conditions.get("terminating") is True:
        return conditions.get("serving") is True
    return conditions.get("ready") is not False
