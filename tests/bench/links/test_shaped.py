"""Numbers and picture of the hand-over across shaped links."""

from __future__ import annotations

from dataclasses import replace

import pytest

from baton.internal.v1.router_service_pb2 import Placement
from baton.v1.generation_pb2 import PlacementSummary
from bench.links.shaped import NotRemoteError, Row, Sample, generate_remotely

_SAMPLE = Sample(
    compute_seconds=2.0,
    transfer_seconds=1.0,
    exposed_seconds=0.1,
    last_token_seconds=2.2,
    predicted_seconds=2.2,
    num_bytes=125_000_000,
    num_frames=10,
)


@pytest.mark.parametrize(
    ("link_bits_per_second", "wire_seconds", "bound_seconds"), [(1e9, 1.0456, 2.1046), (0.25e9, 4.1823, 4.3823)]
)
def test_the_bound_is_the_slower_stage_and_one_group_of_the_quicker(
    link_bits_per_second: float, wire_seconds: float, bound_seconds: float
) -> None:
    """Where the link is quicker, the last group's way remains; where it is slower, the first group's computation."""
    row = Row("a to b", link_bits_per_second, 100, (_SAMPLE,))

    assert row.wire_seconds == pytest.approx(wire_seconds, rel=1e-3)
    assert row.bound_seconds == pytest.approx(bound_seconds, rel=1e-3)
    assert row.start_seconds == pytest.approx(2.1)
    assert row.hidden_share == pytest.approx(0.9)
    assert row.document()["blob_seconds"] == pytest.approx(2.0 + wire_seconds, rel=1e-3)


@pytest.mark.parametrize(
    ("transfer_seconds", "exposed_seconds", "hidden_share"), [(0.0, 0.0, 1.0), (1.0, 0.25, 0.75), (1.0, 2.0, 0.0)]
)
def test_a_transfer_that_took_no_time_is_hidden(
    transfer_seconds: float, exposed_seconds: float, hidden_share: float
) -> None:
    """Every frame may have arrived as soon as it was made; and more than all of a transfer cannot be exposed."""
    sample = replace(_SAMPLE, transfer_seconds=transfer_seconds, exposed_seconds=exposed_seconds)

    assert Row("a to b", 1e9, 100, (sample,)).hidden_share == hidden_share


def test_what_was_not_computed_remotely_is_asked_again(capsys: pytest.CaptureFixture[str]) -> None:
    """A fallback says nothing of the link; three in a row end the run with their cause."""
    cluster = FlakyCluster(num_fallbacks=2)

    sample = generate_remotely(cluster, 512, seed=1)  # type: ignore[arg-type]

    assert sample.num_bytes == 5
    assert capsys.readouterr().out.count("again, 512 tokens: slow") == 2
    with pytest.raises(NotRemoteError, match="slow"):
        generate_remotely(FlakyCluster(num_fallbacks=3), 512, seed=1)  # type: ignore[arg-type]


class FlakyCluster:
    """A cluster whose first prompts are computed where they should not be."""

    def __init__(self, num_fallbacks: int) -> None:
        self._num_fallbacks = num_fallbacks

    def place(self, _num_prompt_tokens: int, _num_output_tokens: int) -> Placement:
        """Return a placement."""
        return Placement(prefill_node_id="far")

    def generate(self, *_arguments: object) -> tuple[list[float], PlacementSummary]:
        """Return tokens' times and a summary."""
        self._num_fallbacks -= 1
        if self._num_fallbacks >= 0:
            raise NotRemoteError("slow")
        return [1.0], PlacementSummary(kv_byte_count=5)
