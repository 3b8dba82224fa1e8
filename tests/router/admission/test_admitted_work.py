"""What admission predicts of a request."""

from __future__ import annotations

import pytest

from baton.capacity.cost import CostEstimate
from baton.router.admission.admitted_work import Prediction


def test_the_waits_for_kv_and_to_join_come_after_the_first_token() -> None:
    """It is out before them: they lengthen the gaps between tokens."""
    estimate = CostEstimate(
        queue_seconds=0.5,
        prefill_seconds=1.0,
        transfer_seconds=0.8,
        exposed_seconds=0.1,
        join_seconds=0.2,
        time_to_first_token_seconds=1.5,
        start_seconds=1.8,
        step_seconds=0.01,
        expected_output_tokens=11.0,
        imposed_seconds=0.0,
    )

    assert Prediction.of(estimate) == pytest.approx((1.5, 0.01 + 0.3 / 10))
