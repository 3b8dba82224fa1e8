"""Whom `baton explain` asks, and what it makes of the answers."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

import pytest

from baton.cli import explain
from baton.errors import NotFoundError, UnavailableError
from baton.internal.v1.router_service_pb2 import ExplainRequest, ExplainResponse, PlacementRecord


class _Stub:
    """A router that remembers some requests."""

    def __init__(self, known: Mapping[str, int]) -> None:
        self._known = known

    def Explain(self, request: ExplainRequest, timeout: float) -> ExplainResponse:  # noqa: N802 - named by the proto
        """Return one record, made at the second that is known of it."""
        if request.request_id not in self._known:
            raise UnavailableError("no such request", reason="REQUEST_NOT_FOUND")
        record = PlacementRecord(request_id=request.request_id, refusal="full")
        record.decided_at.FromSeconds(self._known[request.request_id])
        return ExplainResponse(records=[record])


@pytest.fixture
def _routers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three addresses: two routers that remember something, and one where there is none."""
    routers = {"a:1": _Stub({"both": 5, "chatcmpl-own": 1}), "b:1": _Stub({"both": 3, "abc": 1})}

    def ask_router(address: str, question: object) -> object:
        if address not in routers:
            raise UnavailableError(f"router at {address}: refused", reason="UNAVAILABLE")
        return question(routers[address])  # type: ignore[operator]

    def resolve(host: str, port: str, **_: object) -> object:
        if host != "pods":
            raise OSError(f"{host}: unknown")
        return [(2, 1, 6, "", (name, int(port))) for name in ("b", "a")]

    monkeypatch.setattr(explain, "ask_router", ask_router)
    monkeypatch.setattr(explain.socket, "getaddrinfo", resolve)


def _told(capsys: pytest.CaptureFixture[str], request_id: str, *routers: str) -> Sequence[Mapping[str, str]]:
    explain.command(request_id, list(routers), is_json=True)
    records: Sequence[Mapping[str, str]] = json.loads(capsys.readouterr().out)["records"]
    return records


@pytest.mark.usefixtures("_routers")
def test_all_routers_are_asked_and_their_decisions_sorted_by_time(capsys: pytest.CaptureFixture[str]) -> None:
    """Whether they are given one by one or with commas; one that is away does not matter where another knows."""
    records = _told(capsys, "both", "a:1,c:1", "b:1")

    assert [record["decided_at"] for record in records] == ["1970-01-01T00:00:03Z", "1970-01-01T00:00:05Z"]


@pytest.mark.usefixtures("_routers")
def test_a_name_of_several_routers_asks_each(capsys: pytest.CaptureFixture[str]) -> None:
    """As that of a Service without an address of its own, which stands for all its pods."""
    records = _told(capsys, "both", "pods:1")

    assert [record["decided_at"] for record in records] == ["1970-01-01T00:00:03Z", "1970-01-01T00:00:05Z"]


@pytest.mark.usefixtures("_routers")
@pytest.mark.parametrize(
    ("given", "name"), [("abc", "abc"), ("chatcmpl-abc", "abc"), ("resp_abc", "abc"), ("chatcmpl-own", "chatcmpl-own")]
)
def test_the_id_of_an_answer_names_its_request(capsys: pytest.CaptureFixture[str], given: str, name: str) -> None:
    """Unless a client has named its request like that."""
    (record,) = _told(capsys, given, "a:1", "b:1")

    assert record["request_id"] == name


@pytest.mark.usefixtures("_routers")
def test_an_unknown_request_is_an_error_that_says_how_much_is_remembered() -> None:
    """A router that does not answer may be the one that knows."""
    with pytest.raises(NotFoundError, match=r"'nobody'.*a:1, b:1.*4096"):
        explain.command("nobody", ["a:1", "b:1"])
    with pytest.raises(UnavailableError, match="c:1"):
        explain.command("nobody", ["a:1", "c:1"])
