"""A router that has just started holds placements until it has heard the nodes again, and not for long."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import pytest

from baton.internal.v1.router_service_pb2 import PlacementPin, PlaceRequest
from baton.router.nodes import NodeDescription, NodeTable
from baton.router.servicer import QUIET_SECONDS, WarmUp
from router.samples import DGX, MAC

ANY = PlaceRequest(model_id=MAC.model_id)
PINNED = PlaceRequest(
    model_id=MAC.model_id,
    pins=[
        PlacementPin(decode_node_id="dead"),
        PlacementPin(decode_node_id=MAC.node_id, prefill_node_id=DGX.node_id),
    ],
)


def waited_seconds(
    arrivals: Mapping[float, NodeDescription], request: PlaceRequest, *, longest_seconds: float
) -> float:
    """Return for how long a placement waits, while nodes register at these seconds after the start."""
    now = 0.0
    nodes = NodeTable(lambda: now, stuck_seconds=20.0, silent_seconds=5.0)
    coming = dict(arrivals)

    async def sleep(seconds: float) -> None:
        nonlocal now
        now += seconds
        for moment in [moment for moment in coming if moment <= now]:
            nodes.register(coming.pop(moment))

    warm_up = WarmUp(nodes, longest_seconds, clock=lambda: now, sleep=sleep)
    asyncio.run(warm_up.wait_for(request))
    return now


@pytest.mark.parametrize(
    ("arrivals", "seconds"),
    [
        ({0.5: MAC}, 0.5 + QUIET_SECONDS),
        ({0.5: MAC, 0.7: DGX}, 0.7 + QUIET_SECONDS),
        ({0.5: MAC, 2.0: DGX}, 0.5 + QUIET_SECONDS),
        ({0.5: DGX}, 3.0),
        ({}, 3.0),
    ],
)
def test_placements_wait_for_nodes_that_decode_and_for_those_right_behind(
    arrivals: Mapping[float, NodeDescription], seconds: float
) -> None:
    """All come back within a moment; whoever comes much later is not waited for."""
    assert waited_seconds(arrivals, ANY, longest_seconds=3.0) == pytest.approx(seconds, abs=0.03)


@pytest.mark.parametrize(
    ("arrivals", "seconds"),
    [({0.2: MAC, 1.5: DGX}, 1.5 + QUIET_SECONDS), ({0.2: MAC}, 3.0), ({0.2: DGX, 0.4: MAC}, 0.4 + QUIET_SECONDS)],
)
def test_pinned_placements_wait_for_a_pair_of_pinned_nodes(
    arrivals: Mapping[float, NodeDescription], seconds: float
) -> None:
    """What a resumed request has is there and nowhere else; a pinned node that died is not waited for."""
    assert waited_seconds(arrivals, PINNED, longest_seconds=3.0) == pytest.approx(seconds, abs=0.03)


def test_a_router_that_is_told_not_to_wait_does_not() -> None:
    """Nor does one that has run for long."""
    assert waited_seconds({}, ANY, longest_seconds=0.0) == 0.0
