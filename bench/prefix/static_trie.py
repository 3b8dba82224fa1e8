"""The mock-engine note's prefix cache: a trie of conversations, pruned to its most common edges and never changed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple


@dataclass(slots=True, eq=False)
class _Node:
    """A run of tokens that all conversations through it share, then the ways on."""

    tokens: tuple[int, ...]
    count: int = 0
    """Conversations through the run."""
    children: dict[int, _Node] = field(default_factory=dict)
    """By first token of the child's run."""


class _Placed(NamedTuple):
    """A node of the whole trie and where it hangs."""

    node: _Node
    parent: int
    """Index of the parent in the walk; -1 for the root's children."""
    depth: int
    """Edges above it."""


class PrefixTrie:
    """A trie whose edges are tokens; runs without a branch are kept in one piece.

    Invariant: a node's count is at least that of each child, so that pruning by count keeps whole prefixes.
    """

    def __init__(self) -> None:
        self._root = _Node(())

    @property
    def num_edges(self) -> int:
        """Return the tokens that it holds."""
        return sum(len(placed.node.tokens) for placed in self._walk())

    def insert(self, tokens: Sequence[int]) -> None:
        """Count a conversation. O(its length)."""
        node, rest = self._root, tuple(tokens)
        while rest:
            child = node.children.get(rest[0])
            if child is None:
                node.children[rest[0]] = _Node(rest, 1)
                return
            num_shared = shared_length(child.tokens, rest)
            if num_shared < len(child.tokens):
                child = _split(node, child, num_shared)
            child.count += 1
            node, rest = child, rest[num_shared:]

    def match(self, tokens: Sequence[int]) -> int:
        """Return how many of the first tokens it holds. O(that number)."""
        node, rest, num_matched = self._root, tuple(tokens), 0
        while rest:
            child = node.children.get(rest[0])
            if child is None:
                break
            num_shared = shared_length(child.tokens, rest)
            num_matched += num_shared
            if num_shared < len(child.tokens):
                break
            node, rest = child, rest[num_shared:]
        return num_matched

    def pruned(self, max_edges: int) -> PrefixTrie:
        """Return the trie of the `max_edges` most common edges; of equals, those nearer to the root."""
        walk = list(self._walk())
        ranked = sorted(range(len(walk)), key=lambda index: (-walk[index].node.count, walk[index].depth, index))
        trie, copies, num_left = PrefixTrie(), {-1: _Node(())}, max_edges
        for index in ranked:
            if num_left <= 0:
                break
            source = walk[index].node
            copy = _Node(source.tokens[:num_left], source.count)
            copies[walk[index].parent].children[copy.tokens[0]] = copy
            copies[index] = copy
            num_left -= len(copy.tokens)
        trie._root = copies[-1]
        return trie

    def _walk(self) -> Iterator[_Placed]:
        """Yield every node but the root, parents before children."""
        stack = [_Placed(child, -1, 0) for child in reversed(self._root.children.values())]
        index = 0
        while stack:
            placed = stack.pop()
            yield placed
            depth = placed.depth + len(placed.node.tokens)
            stack += [_Placed(child, index, depth) for child in reversed(placed.node.children.values())]
            index += 1


def shared_length(left: Sequence[int], right: Sequence[int]) -> int:
    """Return the length of the longest common prefix."""
    limit = min(len(left), len(right))
    if left[:limit] == right[:limit]:
        return limit
    return next(index for index in range(limit) if left[index] != right[index])


def _split(parent: _Node, child: _Node, length: int) -> _Node:
    """Put a node over the first `length` tokens of a child's run, and return it."""
    upper = _Node(child.tokens[:length], child.count)
    child.tokens = child.tokens[length:]
    upper.children[child.tokens[0]] = child
    parent.children[upper.tokens[0]] = upper
    return upper
