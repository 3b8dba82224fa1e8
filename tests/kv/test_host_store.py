"""Blocks in host memory."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from baton.kv.hashing import BlockHash
from baton.kv.pool import HostBlockStore


def _hash(number: int) -> BlockHash:
    return BlockHash(bytes([number]) * 16)


def _store(*numbers: int, max_blocks: int = 3) -> HostBlockStore[str]:
    store = HostBlockStore[str](max_blocks * 10 + 9, 10)
    for number in numbers:
        store.put(_hash(number), str(number))
    return store


def test_the_least_recently_used_block_makes_room() -> None:
    """To be asked for is to be used."""
    store = _store(1, 2, 3)
    store.take_run([_hash(1)])

    store.put(_hash(4), "4")

    assert [number for number in range(6) if _hash(number) in store] == [1, 3, 4]


def test_a_run_ends_where_a_block_is_missing() -> None:
    """What follows cannot be used without it."""
    store = _store(1, 2, 3)
    store.forget([_hash(2), _hash(9)])

    assert store.take_run([_hash(1), _hash(2), _hash(3)]) == ["1"]
    assert store.take_run([_hash(2)]) == []
    assert store.num_blocks == 2


@pytest.mark.parametrize(("max_bytes", "block_bytes"), [(0, 10), (9, 10), (100, 0)])
def test_without_room_for_a_block_nothing_is_kept(max_bytes: int, block_bytes: int) -> None:
    """And nobody is told otherwise."""
    store = HostBlockStore[str](max_bytes, block_bytes)

    store.put(_hash(1), "1")

    assert (store.num_blocks, store.take_run([_hash(1)])) == (0, [])


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["put", "take", "forget"]), st.integers(0, 6)), max_size=40))
def test_the_bound_holds_and_the_most_recent_are_there(actions: list[tuple[str, int]]) -> None:
    """Compared with a list in order of use; events say so too."""
    store, model, told = _store(), list[int](), set[BlockHash]()
    for action, number in actions:
        if action == "put":
            store.put(_hash(number), str(number))
            model = [*(other for other in model if other != number), number][-3:]
        elif action == "take":
            taken = store.take_run([_hash(number)])
            assert taken == ([str(number)] if number in model else [])
            if taken:
                model = [*(other for other in model if other != number), number]
        else:
            store.forget([_hash(number)])
            model = [other for other in model if other != number]

        assert [number for number in range(7) if _hash(number) in store] == sorted(model)
        if action == "take":  # changes of several actions are told together
            events = store.changes.drain()
            told = told - set(events.removed) | set(events.stored)
            assert told == set(store.hashes) == {_hash(each) for each in model}
            assert not set(events.stored) & set(events.removed)
