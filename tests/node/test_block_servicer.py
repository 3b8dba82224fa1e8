"""What is sent to measure a link."""

from __future__ import annotations

from baton.node.block_servicer import probe_sizes


def test_a_probe_in_single_bytes_takes_no_memory_for_its_plan() -> None:
    """The largest probe in the smallest messages is 268 million of them."""
    sizes = probe_sizes(2**28, 1)

    assert [next(sizes) for _ in range(3)] == [1, 1, 1]
