"""Of routers in pods one leads, by a Lease of the Kubernetes API."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from baton.discovery.api_server import ApiServer
from baton.router.models.lease import LEASE_SECONDS, Lease
from http_double import Answer, Request, serving

PATH = "/apis/coordination.k8s.io/v1/namespaces/llm/leases"


class LeaseDouble:
    """The API server's part: one Lease, replaced only by who has seen the last one."""

    def __init__(self) -> None:
        self.lease: dict[str, Any] | None = None
        self.is_away = False
        self._version = 0

    def answer(self, request: Request) -> Answer:
        """Answer a request as the API server does."""
        if self.is_away:
            return Answer(503, b"{}")
        if request.method == "GET":
            return Answer(200, json.dumps(self.lease).encode()) if self.lease else Answer(404, b"{}")
        document = json.loads(request.body)
        is_stale = self.lease and document["metadata"].get("resourceVersion") != str(self._version)
        if is_stale or (request.method == "PUT") != (request.path == f"{PATH}/baton-router"):
            return Answer(409, b"{}")
        self._version += 1
        document["metadata"]["resourceVersion"] = str(self._version)
        self.lease = document
        return Answer(200, json.dumps(document).encode())


class Routers:
    """Two that want to lead, and a clock."""

    def __init__(self, url: str) -> None:
        self.now = 0.0
        server = ApiServer(url, "mine", namespace="llm")
        self.both = [Lease("baton-router", name, lambda: server, lambda: self.now) for name in ("one", "two")]

    def turn(self, *, seconds: float = 2.0, is_first_there: bool = True) -> list[bool]:
        """Let time pass, and both renew; return who leads."""
        self.now += seconds
        for lease in self.both if is_first_there else self.both[1:]:
            lease.renew()
        return [lease.is_held for lease in self.both]


@pytest.fixture
def double() -> LeaseDouble:
    """Return an API server without a Lease."""
    return LeaseDouble()


@pytest.fixture
def routers(double: LeaseDouble) -> Iterator[Routers]:
    """Return two routers beside it."""
    with serving(double.answer) as url:
        yield Routers(url)


def test_one_leads_as_long_as_it_renews(routers: Routers) -> None:
    """The first to ask; the other waits, however long."""
    assert [routers.turn(seconds=4.0) for _ in range(4)] == [[True, False]] * 4


def test_another_one_leads_once_the_first_is_silent_and_never_both(routers: Routers) -> None:
    """The first stops by itself before the second may begin."""
    routers.turn()
    seen = [routers.turn(seconds=2.0, is_first_there=False) for _ in range(8)]

    assert [True, True] not in seen
    assert seen[-1] == [False, True]
    assert 2 * seen.index([False, True]) <= LEASE_SECONDS + 2
    assert routers.turn() == [False, True]


def test_who_goes_gives_it_back(routers: Routers) -> None:
    """The other leads at its next turn."""
    routers.turn()
    routers.both[0].renew(is_over=True)

    assert routers.turn(is_first_there=False) == [False, True]


def test_who_cannot_ask_leads_no_longer_than_the_lease(routers: Routers, double: LeaseDouble) -> None:
    """And leads again once the API server answers."""
    routers.turn()
    double.is_away = True
    away = [routers.turn() for _ in range(6)]
    double.is_away = False

    assert away[0] == [True, False]
    assert away[-1] == [False, False]
    assert routers.turn() == [True, False]
