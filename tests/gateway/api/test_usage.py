"""What answers tell of their placement."""

from __future__ import annotations

import pytest

from baton.gateway.access.admission import RequestContext
from baton.gateway.api.usage import placement_body
from baton.gateway.generation.requests import GenerationResult
from baton.v1.generation_pb2 import PlacementSummary
from baton.wire.quantities import duration_from_seconds


@pytest.mark.parametrize(("transfer", "exposed", "share"), [(0, 0, 0), (1, 0, 0), (1, 1, 1), (1, 2, 1), (4, 1, 0.25)])
def test_the_exposed_share_is_between_0_and_1(transfer: float, exposed: float, share: float) -> None:
    """Exposed / transfer, clipped."""
    summary = PlacementSummary(
        transfer_duration=duration_from_seconds(transfer),
        exposed_duration=duration_from_seconds(exposed),
        decode_duration=duration_from_seconds(1),
    )
    result = GenerationResult("length", 1, 0, 1, seed=0, num_attempts=1, summary=summary)

    assert placement_body(RequestContext(), [result]).exposed_share == share
