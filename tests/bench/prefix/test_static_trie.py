"""The static trie of the mock-engine note."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from bench.prefix.static_trie import PrefixTrie, shared_length

_CONVERSATIONS = st.lists(st.lists(st.integers(0, 2), max_size=8), max_size=12)


def _trie(conversations: list[list[int]]) -> PrefixTrie:
    trie = PrefixTrie()
    for tokens in conversations:
        trie.insert(tokens)
    return trie


def _counts(conversations: list[list[int]]) -> Counter[tuple[int, ...]]:
    """Return how many conversations go through each edge, named by the path to its end."""
    return Counter(tuple(tokens[:end]) for tokens in conversations for end in range(1, len(tokens) + 1))


def _edges(trie: PrefixTrie, counts: Counter[tuple[int, ...]]) -> set[tuple[int, ...]]:
    return {path for path in counts if trie.match(path) == len(path)}


def test_the_most_common_edges_are_kept() -> None:
    """A (3 times), ab (2), abc (1), d (1): of equals the one nearer to the root."""
    trie = _trie([[1], [1, 2], [1, 2, 3], [4]])

    assert trie.num_edges == 4
    assert [trie.pruned(size).match([1, 2, 3]) for size in range(5)] == [0, 1, 2, 2, 3]
    assert [trie.pruned(size).match([4]) for size in range(5)] == [0, 0, 0, 1, 1]


def test_a_match_ends_within_a_run() -> None:
    """Runs without a branch are one node."""
    trie = _trie([[1, 2, 3, 4]])

    assert trie.match([1, 2, 9]) == 2
    assert trie.match([9]) == 0
    assert trie.match([]) == 0


@given(_CONVERSATIONS, st.integers(0, 60))
def test_pruning_keeps_so_many_edges_and_none_less_common_than_one_it_drops(
    conversations: list[list[int]], size: int
) -> None:
    """As a count of all paths says, which knows no runs."""
    counts = _counts(conversations)

    pruned = _trie(conversations).pruned(size)

    kept = _edges(pruned, counts)
    assert pruned.num_edges == len(kept) == min(size, len(counts))
    dropped = [counts[path] for path in counts.keys() - kept]
    assert not dropped or not kept or min(counts[path] for path in kept) >= max(dropped)


@given(_CONVERSATIONS, st.lists(st.integers(0, 2), max_size=8), st.integers(0, 60))
def test_a_match_is_the_longest_prefix_that_is_kept(
    conversations: list[list[int]], tokens: list[int], size: int
) -> None:
    """Kept edges are whole prefixes, so that it is also the number of kept edges on the way."""
    pruned, counts = _trie(conversations).pruned(size), _counts(conversations)
    kept = _edges(pruned, counts)

    assert pruned.match(tokens) == sum(tuple(tokens[:end]) in kept for end in range(1, len(tokens) + 1))


@given(_CONVERSATIONS)
def test_pruning_leaves_the_whole_trie_as_it_is(conversations: list[list[int]]) -> None:
    """It is pruned to several sizes."""
    trie, counts = _trie(conversations), _counts(conversations)
    trie.pruned(3)

    assert trie.num_edges == len(counts)
    assert all(trie.match(tokens) == len(tokens) for tokens in conversations)


def test_shared_length_counts_equal_leading_tokens() -> None:
    """Of the shorter at most."""
    assert [shared_length((1, 2), other) for other in ((1, 2, 3), (1, 3), (2,), ())] == [2, 1, 0, 0]
