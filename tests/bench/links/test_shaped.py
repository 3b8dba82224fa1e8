"""Numbers and picture of the hand-over across shaped links."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.links.shaped import Row, Sample, draw_shaped

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


def test_every_pair_and_link_is_drawn(tmp_path: Path) -> None:
    """As one picture."""
    rows = [Row(pair, rate, length, (_SAMPLE,)) for pair in "ab" for rate in (1e9, 1e10) for length in (512, 1024)]
    draw_shaped([row.document() for row in rows], tmp_path / "shaped.png")

    assert (tmp_path / "shaped.png").read_bytes().startswith(b"\x89PNG")
