"""Memory in which frames land: given again, but never while anybody can look into it."""

from __future__ import annotations

import numpy as np
import pytest

from baton.kv.stream import StagingPool

MIB = 1 << 20


def _address(memory: memoryview) -> int:
    return np.frombuffer(memory, np.uint8).ctypes.data


@pytest.mark.parametrize("num_bytes", [MIB, MIB + 1, 5 * MIB // 4, 3 * MIB - 1, 7 * MIB])
def test_memory_is_as_large_as_asked_and_little_of_it_lies_unused(num_bytes: int) -> None:
    """A quarter at most, so that frames of about one size find each other's."""
    pool = StagingPool()

    given = pool.give(num_bytes)
    assert len(given) == num_bytes
    assert not given.readonly
    assert pool.num_idle_bytes == 0
    del given

    assert num_bytes <= pool.num_idle_bytes <= num_bytes * 5 // 4


def test_memory_is_given_again_when_every_view_of_it_has_gone() -> None:
    """A frame that is kept, or a part of one, is nobody else's to write into."""
    pool = StagingPool()
    first = pool.give(MIB)
    address, kept = _address(first), first[100:200]
    del first

    other = pool.give(MIB)
    assert _address(other) != address
    del kept

    assert _address(pool.give(MIB)) == address


def test_no_more_is_kept_than_is_allowed() -> None:
    """The rest goes back to the system; what is small is never kept."""
    pool = StagingPool(max_idle_bytes=2 * MIB)
    given = [pool.give(MIB) for _ in range(4)]
    given.clear()

    assert pool.num_idle_bytes == 2 * MIB
    pool.give(100)
    assert pool.num_idle_bytes == 2 * MIB
