"""The map from blocks to nodes."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from baton.cache_index.index import CacheIndex
from baton.errors import SupersededError
from baton.kv.hashing import LOWER_TIERS, BlockEvents, BlockHash, HeldPrefix, Tier

HASHES = [BlockHash(bytes([number]) * 16) for number in range(8)]


def index_of(blocks: dict[str, list[BlockHash]]) -> tuple[CacheIndex, dict[str, int]]:
    """Return an index with these nodes, each published by a stream of its own, next event 0."""
    index = CacheIndex()
    publishers = {}
    for node_id, hashes in blocks.items():
        publishers[node_id] = index.open_publisher()
        index.replace(publishers[node_id], node_id, hashes, 0)
    return index, publishers


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ([], {}),
        ([7], {}),
        ([0], {"a": 1, "b": 1}),
        ([0, 1, 2, 3], {"a": 3, "b": 1}),
        ([0, 2], {"a": 2, "b": 2}),
        ([1, 0], {"a": 2}),
    ],
)
def test_a_lookup_counts_leading_blocks_only(prompt: list[int], expected: dict[str, int]) -> None:
    """A node counts up to its first missing block; later ones do not help."""
    index, _ = index_of({"a": HASHES[:3], "b": [HASHES[0], HASHES[2]]})

    assert index.longest_prefixes([HASHES[number] for number in prompt]) == expected


def test_events_move_blocks() -> None:
    """Stored blocks are found, removed ones are not."""
    index, publishers = index_of({"a": HASHES[:2]})

    assert not index.apply(publishers["a"], "a", 0, removed=[HASHES[1]], stored=[HASHES[2]])

    assert index.longest_prefixes(HASHES) == {"a": 1}
    assert len(index._holders) == 2


def test_a_block_removed_and_stored_in_one_batch_is_held() -> None:
    """Removals are applied before stores."""
    index, publishers = index_of({"a": HASHES[:1]})

    index.apply(publishers["a"], "a", 0, removed=[HASHES[0]], stored=[HASHES[0]])

    assert index.longest_prefixes(HASHES) == {"a": 1}


def test_a_gap_asks_for_one_snapshot_and_ignores_events_until_it_comes() -> None:
    """After batch 0 comes batch 2: the index asks once, and the snapshot sets the count."""
    index, publishers = index_of({"a": []})
    publisher = publishers["a"]

    answers = [index.apply(publisher, "a", number, removed=[], stored=[HASHES[number]]) for number in (0, 2, 3)]
    assert answers == [False, True, False]
    assert index.longest_prefixes(HASHES) == {"a": 1}

    index.replace(publisher, "a", HASHES[:4], 4)
    assert not index.apply(publisher, "a", 4, removed=[], stored=[HASHES[4]])
    assert index.longest_prefixes(HASHES) == {"a": 5}


def test_batches_that_a_snapshot_covers_are_left_out() -> None:
    """A batch with a number below the next one is old and changes nothing."""
    index, publishers = index_of({"a": HASHES[:1]})
    index.replace(publishers["a"], "a", HASHES[:1], 5)

    assert not index.apply(publishers["a"], "a", 4, removed=[HASHES[0]], stored=[])
    assert index.longest_prefixes(HASHES) == {"a": 1}


def test_a_node_is_its_streams_until_that_ends() -> None:
    """Another can neither take it over nor forget its blocks; once it has ended, another is welcome."""
    index, publishers = index_of({"a": HASHES[:2]})
    other = index.open_publisher()

    with pytest.raises(SupersededError):
        index.replace(other, "a", [], 0)
    with pytest.raises(SupersededError):
        index.apply(other, "a", 0, removed=[HASHES[0]], stored=[])
    with pytest.raises(SupersededError):
        index.extend(other, "a", HASHES)
    assert not index.shrink(other, "a", 1)
    index.forget(other, "a")
    assert index.longest_prefixes(HASHES) == {"a": 2}

    index.forget(publishers["a"], "a")
    index.replace(other, "a", HASHES[:1], 0)
    assert index.longest_prefixes(HASHES) == {"a": 1}


def test_a_snapshot_comes_and_goes_in_parts() -> None:
    """Others look up between them."""
    index, publishers = index_of({"a": []})

    assert index.extend(publishers["a"], "a", HASHES[:2])
    assert index.extend(publishers["a"], "a", HASHES[2:4])
    assert index.longest_prefixes(HASHES) == {"a": 4}
    while index.shrink(publishers["a"], "a", 3):
        pass
    assert index.num_entries == 0


def test_forgetting_in_parts_costs_no_more_than_what_is_forgotten() -> None:
    """Not a look through all that went before, for each part."""
    hashes = [BlockHash(number.to_bytes(16, "big")) for number in range(40_000)]
    index, publishers = index_of({"a": hashes, "b": hashes})

    began = time.thread_time()
    index.forget(publishers["b"], "b")
    at_once = time.thread_time() - began
    while index.shrink(publishers["a"], "a", 1):
        pass
    assert time.thread_time() - began < 20 * at_once
    assert index.num_entries == 0


def test_a_node_has_what_others_leave() -> None:
    """All of the index while it is alone; its share, in whichever tier, is all that others leave it."""
    index = CacheIndex(max_blocks=8, max_node_blocks=4)
    greedy, other, third = (index.open_publisher() for _ in range(3))
    index.replace(greedy, "a", HASHES[:5], 0)
    index.apply(greedy, "a", 0, removed=(), stored=(), lower=[BlockEvents(HASHES[5:], (), Tier.DISK)])
    assert index.held_prefixes(HASHES) == {"a": HeldPrefix(5, 0, 3, 3)}
    assert not index.extend(greedy, "a", [BlockHash(b"another, 16 long")])

    index.replace(other, "b", HASHES[:2], 0)
    assert index.held_prefixes(HASHES) == {"a": HeldPrefix(5, 0, 1, 1), "b": HeldPrefix(2)}
    assert not index.extend(other, "b", HASHES[2:6])
    index.replace(third, "c", HASHES[:2], 0)

    assert index.held_prefixes(HASHES) == {"a": HeldPrefix(4), "b": HeldPrefix(4)}
    assert index.num_entries == 8


def test_a_forgotten_node_leaves_nothing_behind() -> None:
    """When the stream ends, the node and its blocks are gone; other nodes' blocks stay."""
    index, publishers = index_of({"a": HASHES[:4], "b": HASHES[:1]})

    index.forget(publishers["a"], "a")

    assert index.longest_prefixes(HASHES) == {"b": 1}
    assert (len(index._nodes), len(index._holders)) == (1, 1)


def test_blocks_below_a_device_go_on_where_it_ends() -> None:
    """A gap ends what a node has, in whichever tier; what is in two of them counts as in the faster one."""
    index, publishers = index_of({"a": HASHES[:2], "b": [], "c": HASHES[:1]})

    host = BlockEvents(stored=[HASHES[2], HASHES[4]], removed=[], tier=Tier.HOST)
    disk = BlockEvents(stored=[*HASHES[1:4], HASHES[5], HASHES[7]], removed=[], tier=Tier.DISK)
    index.apply(publishers["a"], "a", 0, removed=[], stored=[], lower=[host, disk])
    index.apply(publishers["b"], "b", 0, removed=[], stored=[], lower=[BlockEvents(HASHES[:3], [], Tier.DISK)])

    assert index.held_prefixes(HASHES) == {
        "a": HeldPrefix(2, num_host_blocks=1, num_lower_blocks=4, num_disk_blocks=2),
        "b": HeldPrefix(0, num_host_blocks=0, num_lower_blocks=3, num_disk_blocks=3),
        "c": HeldPrefix(1),
    }
    assert index.longest_prefixes(HASHES) == {"a": 2, "c": 1}


def test_a_snapshot_takes_what_was_below_the_device_away() -> None:
    """The node tells of it again."""
    index, publishers = index_of({"a": HASHES[:1]})
    index.apply(publishers["a"], "a", 0, removed=[], stored=[], lower=[BlockEvents(HASHES, [], Tier.HOST)])

    index.replace(publishers["a"], "a", HASHES[:1], 1)

    assert index.held_prefixes(HASHES) == {"a": HeldPrefix(1)}


@given(st.dictionaries(st.sampled_from("abc"), st.sets(st.sampled_from(HASHES))), st.permutations(HASHES))
def test_lookups_equal_a_naive_count(blocks: dict[str, set[BlockHash]], prompt: list[BlockHash]) -> None:
    """For any contents, counting block by block per node gives the same."""
    index, _ = index_of({node_id: list(hashes) for node_id, hashes in blocks.items()})

    assert index.longest_prefixes(prompt) == naive(blocks, prompt)


def naive(blocks: dict[str, set[BlockHash]], prompt: list[BlockHash]) -> dict[str, int]:
    """Return the leading blocks of each node, counted one by one."""
    counts = {}
    for node_id, hashes in blocks.items():
        missing = [depth for depth, block_hash in enumerate(prompt) if block_hash not in hashes]
        counts[node_id] = missing[0] if missing else len(prompt)
    return {node_id: count for node_id, count in counts.items() if count}


@dataclass
class Known:
    """What the model knows of one node."""

    publisher: int
    next_number: int
    hashes: set[BlockHash] = field(default_factory=set)
    lower: dict[Tier, set[BlockHash]] = field(default_factory=lambda: {tier: set() for tier in LOWER_TIERS})

    def held(self, prompt: list[BlockHash]) -> HeldPrefix:
        """Return what the node has of a prompt, block by block."""
        host, disk = self.lower[Tier.HOST], self.lower[Tier.DISK]
        begin = next((depth for depth, each in enumerate(prompt) if each not in self.hashes), len(prompt))
        rest = prompt[begin:]
        end = next((depth for depth, each in enumerate(rest) if each not in host | disk), len(rest))
        num_host = next((depth for depth, each in enumerate(rest) if each not in host), len(rest))
        return HeldPrefix(begin, num_host, end, sum(each not in host for each in rest[:end]))


def test_what_memory_has_no_room_for_is_not_known() -> None:
    """Over all nodes and tiers; what goes makes room."""
    index = CacheIndex(max_blocks=4)
    publisher = index.open_publisher()
    index.replace(publisher, "a", HASHES[:3], 0)
    lower = [BlockEvents(HASHES[3:6], (), Tier.HOST)]
    index.apply(publisher, "a", 0, removed=(), stored=(), lower=lower)
    other = index.open_publisher()
    index.replace(other, "b", HASHES[:2], 0)

    assert index.held_prefixes(HASHES) == {"a": HeldPrefix(3, 1, 1, 0)}
    assert index.num_entries == 4

    index.apply(publisher, "a", 1, removed=HASHES[1:3], stored=(), lower=())
    index.apply(other, "b", 0, removed=(), stored=HASHES[:8], lower=())

    assert index.longest_prefixes(HASHES) == {"a": 1, "b": 2}
    index.forget(publisher, "a")
    index.forget(other, "b")
    assert index.num_entries == 0


class IndexMachine(RuleBasedStateMachine):
    """Any order of snapshots, events and ends, against sets."""

    nodes = st.sampled_from("abc")
    hash_sets = st.sets(st.sampled_from(HASHES))

    def __init__(self) -> None:
        super().__init__()
        self.index = CacheIndex()
        self.known: dict[str, Known] = {}

    @rule(node_id=nodes, hashes=hash_sets, number=st.integers(0, 9))
    def snapshot(self, node_id: str, hashes: set[BlockHash], number: int) -> None:
        """Publish a node on a stream of its own."""
        publisher = self.known[node_id].publisher if node_id in self.known else self.index.open_publisher()
        self.index.replace(publisher, node_id, hashes, number)
        self.known[node_id] = Known(publisher, number, set(hashes))

    @precondition(lambda self: self.known)
    @rule(data=st.data(), tier=st.sampled_from(Tier), removed=hash_sets, stored=hash_sets)
    def events(self, data: st.DataObject, tier: Tier, removed: set[BlockHash], stored: set[BlockHash]) -> None:
        """Change a node's blocks in one tier."""
        node_id = data.draw(st.sampled_from(sorted(self.known)))
        known = self.known[node_id]
        lower = [] if tier is Tier.DEVICE else [BlockEvents(sorted(stored), sorted(removed), tier)]
        on_device = {"removed": removed, "stored": stored} if not lower else {"removed": set(), "stored": set()}
        assert not self.index.apply(known.publisher, node_id, known.next_number, **on_device, lower=lower)
        known.next_number += 1
        if lower:
            known.lower[tier] = (known.lower[tier] - removed) | stored
        else:
            known.hashes = (known.hashes - removed) | stored

    @precondition(lambda self: self.known)
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        """End a node's stream."""
        node_id = data.draw(st.sampled_from(sorted(self.known)))
        self.index.forget(self.known.pop(node_id).publisher, node_id)

    @invariant()
    def equals_the_model(self) -> None:
        """Lookups and sizes are those of the sets."""
        blocks = {node_id: known.hashes for node_id, known in self.known.items()}
        assert self.index.longest_prefixes(HASHES) == naive(blocks, HASHES)
        held = {node_id: known.held(HASHES) for node_id, known in self.known.items()}
        assert self.index.held_prefixes(HASHES) == {node_id: each for node_id, each in held.items() if any(each)}
        assert len(self.index._holders) == len(set().union(*blocks.values()))
        lower = [hashes for known in self.known.values() for hashes in known.lower.values()]
        assert self.index.num_entries == sum(map(len, [*blocks.values(), *lower]))


TestIndexMachine = IndexMachine.TestCase
