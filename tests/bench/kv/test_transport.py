"""The benchmark of transports: two processes per contender, and a table of them."""

from __future__ import annotations

import sys

import pytest

from bench.kv.transport import Contender, Sample, measure, row_of, table_lines
from bench.processes import ChildFailedError

LINK = (sys.executable, "-m", "baton.cli", "kv-link")
PEER = (sys.executable, "-m", "bench.kv.raw_tcp")
CONTENDERS = {
    "raw": Contender("raw TCP", PEER),
    "fast": Contender("fast", LINK, ("--path", "fast")),
    "fast-checked": Contender("fast-checked", LINK, ("--path", "fast-checked")),
    "shared": Contender("shared", LINK, ("--path", "shared")),
    "grpc": Contender("grpc", LINK, ("--path", "grpc")),
}


@pytest.mark.parametrize("name", CONTENDERS)
def test_a_contender_moves_frames_and_tells_what_it_took(name: str) -> None:
    """Rate and CPU time of both ends are above nothing; what landed was compared."""
    sample = measure(CONTENDERS[name], num_frames=300, frame_bytes=1 << 14)

    assert sample.gigabytes_per_second > 0
    assert sample.send_cpu_seconds > 0
    assert sample.receive_cpu_seconds > 0


def test_fewer_frames_than_there_is_memory_for_are_right() -> None:
    """Memory that no frame was for is not compared."""
    assert measure(CONTENDERS["fast"], num_frames=8, frame_bytes=1 << 14).gigabytes_per_second > 0


def test_a_contender_that_cannot_start_is_named() -> None:
    """Its package is not installed, say."""
    with pytest.raises(ChildFailedError, match="no_such_peer"):
        measure(Contender("other", (sys.executable, "-m", "bench.kv.no_such_peer")), 1, 1 << 14)


def test_ratios_are_those_of_one_round() -> None:
    """The machine may have been slower in another."""
    samples = {
        "raw TCP": [Sample(4.0, 0.2, 0.2), Sample(2.0, 0.4, 0.4), Sample(1.0, 0.8, 0.8)],
        "other": [Sample(2.0, 0.4, 0.4), Sample(1.0, 0.8, 0.8), Sample(0.5, 1.6, 1.6)],
    }
    row = row_of("other", samples)

    assert row["rate_ratio"] == 0.5
    assert row["cpu_ratio"] == 2.0
    assert list(table_lines([row]))[-1] == "| other | 1.00 | 0.80 + 0.80 | 0.50 | 2.00 |"
