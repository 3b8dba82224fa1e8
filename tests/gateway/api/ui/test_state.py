"""The state document of the page /ui: what it says of nodes, of requests, and of whose frames it brings."""

from __future__ import annotations

from typing import Any

import pytest

from baton.gateway.api.ui.state import state_document
from baton.internal.v1.node_pb2 import LoadReport, NodeDescription
from baton.internal.v1.router_service_pb2 import NodeState
from gateway.api.ui.pictures import LAYERS, picture


def _node(**fields: Any) -> Any:
    state = NodeState(node=NodeDescription(node_id="a", block_count=10, block_token_count=16), **fields)
    return state_document((), "1", [state], [], 0.0)["nodes"][0]


def test_a_node_says_why_it_takes_no_requests() -> None:
    """In the router's words; a router that does not say so yet has said that the node drains."""
    assert _node()["trouble"] == ""
    assert _node(unusable_reason="no report for 7.2 s")["trouble"] == "no report for 7.2 s"
    assert _node(load=LoadReport(is_draining=True))["trouble"] == "draining"


@pytest.mark.parametrize(("load", "share"), [(None, 0), (LoadReport(free_block_count=4), 0.6), (LoadReport(), 1)])
def test_a_pool_is_empty_until_a_report_says_otherwise(load: LoadReport | None, share: float) -> None:
    """A node that has not reported has used nothing, one that reports no free block everything."""
    node = _node(load=load)

    assert node["used_share"] == pytest.approx(share)
    assert node["pool_tokens"] == 160


def test_only_one_request_brings_its_frames() -> None:
    """The latest that has any, or the one that is asked for."""
    latest, chosen, unknown = picture(5), picture(5, name="chatcmpl-3"), picture(5, name="failed-1")

    assert [each["timeline"]["name"] for each in (latest, chosen, unknown)] == [
        "chatcmpl-0",
        "chatcmpl-3",
        "chatcmpl-0",
    ]
    assert len(chosen["timeline"]["frames"]) == LAYERS
    assert picture(1)["timeline"] is None
    assert all("timeline" not in request for request in latest["requests"])


def test_requests_are_told_with_their_nodes_and_terms() -> None:
    """Also while they run; what has run has a measurement beside each estimate."""
    requests = {request["name"]: request for request in picture(5)["requests"]}

    states = [requests[name]["state"] for name in ("placing-1", "prefilling-1", "decoding-1", "chatcmpl-0", "failed-1")]
    assert states == ["placing", "prefilling", "decoding", "done", "failed"]
    assert requests["prefilling-1"]["prefill_node"] == "prefill-dgx-spark-0"
    assert requests["prefilling-1"]["decode_node"] == "decode-m3-ultra-0"
    terms = {pair["term"]: pair for pair in requests["chatcmpl-0"]["terms"]}
    assert terms["total"]["measured_seconds"] == pytest.approx(1.53)
    assert terms["total"]["estimated_seconds"] == pytest.approx(0.49 + 48 * 0.02)
    assert requests["prefilling-1"]["terms"][0]["measured_seconds"] is None
