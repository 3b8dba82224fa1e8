"""Ranges of a shared memory: none overlap, and all room comes back."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from baton.shm.borrower import ALIGNMENT_BYTES, Ring

NUM_BYTES = 16 * ALIGNMENT_BYTES


def test_a_full_ring_gives_nothing_until_its_oldest_range_is_freed() -> None:
    """Younger ones that are free wait for it: what is taken stays in one piece."""
    ring = Ring(4 * ALIGNMENT_BYTES, 8)
    first, second, third = (ring.take(ALIGNMENT_BYTES) for _ in range(3))

    assert (first, second, third) == (0, ALIGNMENT_BYTES, 2 * ALIGNMENT_BYTES)
    assert ring.take(2 * ALIGNMENT_BYTES) is None
    ring.free(ALIGNMENT_BYTES)
    assert ring.take(2 * ALIGNMENT_BYTES) is None
    ring.free(0)
    assert ring.take(2 * ALIGNMENT_BYTES) == 0


def test_no_more_ranges_are_in_use_than_allowed() -> None:
    """However small they are."""
    ring = Ring(NUM_BYTES, 2)
    assert ring.take(1) is not None
    assert ring.take(1) is not None

    assert ring.take(1) is None


@given(st.lists(st.one_of(st.integers(1, NUM_BYTES), st.none()), max_size=60), st.randoms(use_true_random=False))
def test_ranges_in_use_never_overlap_and_all_room_comes_back(steps: list[int | None], drawn: object) -> None:
    """Whatever is taken and freed in whatever order."""
    ring = Ring(NUM_BYTES, 8)
    in_use: dict[int, int] = {}
    for size in steps:
        if size is None and in_use:
            begin = drawn.choice(sorted(in_use))  # type: ignore[attr-defined]
            del in_use[begin]
            ring.free(begin)
        elif size is not None and (begin := ring.take(size)) is not None:
            assert begin in range(NUM_BYTES - size + 1)
            assert all(end <= begin or begin + size <= other for other, end in in_use.items())
            in_use[begin] = begin + size
    for begin in sorted(in_use):
        ring.free(begin)

    assert ring.take(NUM_BYTES) == 0
