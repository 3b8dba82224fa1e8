"""What is read from EndpointSlices."""

from __future__ import annotations

from typing import Any

import pytest

from baton.discovery.endpoints import EndpointState, Event, Listing, Slice, WatchError, event_of, listing_of
from discovery.api_double import slice_document


@pytest.mark.parametrize(
    ("conditions", "takes_work"),
    [
        ({"ready": True}, True),
        ({}, True),
        ({"ready": None}, True),
        ({"ready": False}, False),
        ({"ready": False, "serving": True, "terminating": True}, True),
        ({"ready": False, "serving": False, "terminating": True}, False),
        ({"ready": True, "terminating": True}, False),
    ],
)
def test_only_endpoints_that_take_work_count(conditions: dict[str, Any], takes_work: bool) -> None:
    """A condition that is not known counts as ready; a pod that ends counts for as long as it serves."""
    document = slice_document("a", 1, ["10.0.0.1"])
    document["endpoints"][0]["conditions"] = conditions

    (found,) = listing_of({"metadata": {"resourceVersion": "1"}, "items": [document]}, "grpc").slices

    assert bool(found.addresses) == takes_work


@pytest.mark.parametrize(
    ("port", "addresses"), [("grpc", {"[fd00::1]:8010"}), ("8010", {"[fd00::1]:8010"}), ("http", set())]
)
def test_a_port_is_named_or_numbered(port: str, addresses: set[str]) -> None:
    """A port that a slice does not have gives no address; IPv6 addresses stand in brackets."""
    document = slice_document("a", 1, ["fd00::1"])

    event = event_of({"type": "ADDED", "object": document}, port)

    assert event.slice == Slice("a", frozenset(addresses))


def test_a_slice_without_endpoints_or_ports_is_empty() -> None:
    """Kubernetes writes null for lists that are empty."""
    document = {"metadata": {"name": "a", "resourceVersion": "1"}, "endpoints": None, "ports": None}

    assert event_of({"type": "ADDED", "object": document}, "grpc").slice == Slice("a", frozenset())


@pytest.mark.parametrize(
    "document",
    [{}, {"metadata": {}}, {"metadata": None}, [], None, {"metadata": {"resourceVersion": "1"}, "items": [3]}],
)
def test_what_is_no_list_is_refused(document: Any) -> None:
    """The caller gets one class of error."""
    with pytest.raises(WatchError, match="no list of EndpointSlices"):
        listing_of(document, "grpc")


def test_an_address_in_two_slices_is_there_until_both_have_lost_it() -> None:
    """Kubernetes moves endpoints between slices, and shows them in both for a moment."""
    state = EndpointState()
    state.replace(Listing([Slice("a", frozenset({"x:1"})), Slice("b", frozenset({"x:1", "y:1"}))], "1"))
    state.apply(Event("DELETED", "2", Slice("b", frozenset())))
    between = state.addresses
    state.apply(Event("MODIFIED", "3", Slice("a", frozenset())))

    assert (between, state.addresses, state.resource_version) == (frozenset({"x:1"}), frozenset(), "3")
