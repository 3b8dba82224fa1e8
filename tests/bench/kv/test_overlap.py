"""What a pipeline of KV frames hides."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.kv.overlap import draw_overlap, pipeline_hidden_share


@pytest.mark.parametrize(
    ("ratio", "num_frames", "share"),
    [
        (1.0, 32, 31 / 32),  # exactly one frame is left
        (0.5, 32, 31 / 32),
        (1.0, 1, 0.0),  # a blob hides nothing
        (2.0, 4, 3 / 8),  # 1 + 3 * 2 + 2 = 9 units, 4 computing, 5 of 8 exposed
    ],
)
def test_the_pipeline_leaves_what_its_formula_says(ratio: float, num_frames: int, share: float) -> None:
    """Where sending is quicker one frame is exposed; where it is slower, the difference as well."""
    assert pipeline_hidden_share(ratio, num_frames) == pytest.approx(share)


def test_a_measurement_is_drawn(tmp_path: Path) -> None:
    """As a PNG."""
    sample = {"exposed_seconds": 0.1, "transfer_seconds": 0.4, "num_frames": 4}
    rows = [
        {"setting": {"name": "mock"}, "ratio": ratio, "hidden_share": 0.75, "samples": [sample]} for ratio in (0.5, 1.0)
    ]

    draw_overlap(rows, tmp_path / "overlap.png")

    assert (tmp_path / "overlap.png").read_bytes().startswith(b"\x89PNG")
