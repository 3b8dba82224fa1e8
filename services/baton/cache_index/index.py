"""Which node holds which block: a map from block hash to nodes, kept by snapshots and numbered events. Pure."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice

from baton.errors import SupersededError
from baton.kv.hashing import LOWER_TIERS, BlockEvents, BlockHash, HeldPrefix, Tier


@dataclass(slots=True)
class _NodeBlocks:
    """What is known of one node."""

    publisher: int
    """Stream that speaks for the node."""
    next_sequence_number: int
    """Number of the next event batch; another one is a gap."""
    is_snapshot_awaited: bool = False
    """Whether events are ignored until a snapshot comes."""
    hashes: dict[BlockHash, None] = field(default_factory=dict)
    """Blocks that the node holds on its device, those told last at the end: the ends of prompts."""
    lower: dict[Tier, dict[BlockHash, None]] = field(default_factory=lambda: {tier: {} for tier in LOWER_TIERS})
    """Blocks that it can bring back there, in the same order."""

    @property
    def num_entries(self) -> int:
        """Return how many blocks it has, each as often as it is held."""
        return len(self.hashes) + sum(map(len, self.lower.values()))

    def below(self, hashes: Sequence[BlockHash], num_blocks: int) -> HeldPrefix:
        """Return what the node holds of a prompt of which these leading blocks are on the device."""
        host, disk = self.lower[Tier.HOST], self.lower[Tier.DISK]
        num_host = num_lower = num_disk = 0
        for block_hash in islice(hashes, num_blocks, None) if host or disk else ():
            is_on_host = block_hash in host
            if not is_on_host and block_hash not in disk:
                break
            num_host += is_on_host and not num_disk
            num_disk += not is_on_host
            num_lower += 1
        return HeldPrefix(num_blocks, num_host, num_lower, num_disk)


class CacheIndex:
    """Finds the longest prefix of a prompt that each node holds.

    Invariant, kept by `_store` and `_let_go`: a node is in `_holders[hash]` exactly if the hash is in the node's own
    set, and no entry of `_holders` is empty. A node belongs to one stream until that forgets it. Of all nodes and tiers
    there are never more than `max_blocks`: what comes beyond them is not known, and so not counted on. Where they are
    reached, nodes that have more than `max_node_blocks` give way to those that have fewer.

    At most `max_blocks` are known, None: any number; a node keeps `max_node_blocks` whatever others have.
    """

    def __init__(self, max_blocks: int | None = None, max_node_blocks: int | None = None) -> None:
        self._max_blocks = sys.maxsize if max_blocks is None else max_blocks
        self._max_node_blocks = sys.maxsize if max_node_blocks is None else max_node_blocks
        self.num_entries = 0
        """Blocks of all nodes and tiers, each as often as it is held."""
        self._holders: dict[BlockHash, set[str]] = {}
        self._nodes: dict[str, _NodeBlocks] = {}
        self._num_publishers = 0

    def open_publisher(self) -> int:
        """Return a number for a stream."""
        self._num_publishers += 1
        return self._num_publishers

    def replace(self, publisher: int, node_id: str, hashes: Iterable[BlockHash], next_sequence_number: int) -> None:
        """Take a snapshot of a node's device, O(blocks); raise SupersededError if another stream publishes it."""
        known = self._nodes.get(node_id)
        if known:
            self._published(publisher, node_id)
            self._drop(node_id, known)
        self._nodes[node_id] = _NodeBlocks(publisher, next_sequence_number)
        self._store(node_id, self._nodes[node_id], hashes)

    def extend(self, publisher: int, node_id: str, hashes: Iterable[BlockHash]) -> bool:
        """Take more of a snapshot; return whether there is room for more. Raises SupersededError if it is another's."""
        known = self._published(publisher, node_id)
        self._store(node_id, known, hashes)
        return self._room(known, 1) > 0

    def shrink(self, publisher: int, node_id: str, num_blocks: int) -> bool:
        """Forget some of the blocks on the device of a node that this stream publishes; return whether it had any."""
        known = self._nodes.get(node_id)
        if known is None or known.publisher != publisher or not known.hashes:
            return False
        for _ in range(min(num_blocks, len(known.hashes))):
            self._let_go(node_id, known.hashes.popitem()[0])
        return True

    def apply(
        self,
        publisher: int,
        node_id: str,
        sequence_number: int,
        *,
        removed: Iterable[BlockHash],
        stored: Iterable[BlockHash],
        lower: Iterable[BlockEvents] = (),
    ) -> bool:
        """Take a batch of events, removals first; return whether a snapshot is needed because batches were missed.

        It is asked for once; until it comes, events of the node are ignored and its last known blocks stand.

        Args:
            publisher: Stream that speaks for the node.
            node_id: The node.
            sequence_number: Of the batch.
            removed: Blocks that its device no longer has.
            stored: Blocks that its device has got.
            lower: Changes below the device.

        Raises SupersededError if the node is not published by this stream.
        """
        known = self._published(publisher, node_id)
        if known.is_snapshot_awaited or sequence_number < known.next_sequence_number:
            return False
        if sequence_number > known.next_sequence_number:
            known.is_snapshot_awaited = True
            return True
        known.next_sequence_number += 1
        self._remove(node_id, known, removed)
        self._store(node_id, known, stored)
        for events in lower:
            self._change_lower(known, known.lower[events.tier], events)
        return False

    def forget(self, publisher: int, node_id: str) -> None:
        """Drop a node, unless another stream publishes it."""
        known = self._nodes.get(node_id)
        if known and known.publisher == publisher:
            self._drop(node_id, known)
            del self._nodes[node_id]

    def longest_prefixes(self, hashes: Sequence[BlockHash]) -> dict[str, int]:
        """Return how many leading blocks each node's device holds, at least one. O(len(hashes) + nodes)."""
        lengths: dict[str, int] = {}
        holding: set[str] = set(self._holders.get(hashes[0], ())) if hashes else set()
        for depth, block_hash in enumerate(hashes):
            still_holding = holding & self._holders.get(block_hash, set())
            lengths.update(dict.fromkeys(holding - still_holding, depth))
            holding = still_holding
            if not holding:
                break
        lengths.update(dict.fromkeys(holding, len(hashes)))
        return lengths

    def held_prefixes(self, hashes: Sequence[BlockHash]) -> dict[str, HeldPrefix]:
        """Return the leading blocks that each node holds, for nodes that hold at least one, on the device or below.

        O(len(hashes) + nodes), and O(1) for every block that a node holds below its device.
        """
        lengths = self.longest_prefixes(hashes)
        held = {node_id: known.below(hashes, lengths.get(node_id, 0)) for node_id, known in self._nodes.items()}
        return {node_id: prefix for node_id, prefix in held.items() if prefix.num_blocks or prefix.num_lower_blocks}

    def _published(self, publisher: int, node_id: str) -> _NodeBlocks:
        known = self._nodes.get(node_id)
        if known is None or known.publisher != publisher:
            raise SupersededError(f"node {node_id} is published by another stream")
        return known

    def _room(self, known: _NodeBlocks, num_blocks: int) -> int:
        """Return for how many of so many further blocks of a node there is room, once others have given way."""
        due = min(num_blocks, self._max_node_blocks - known.num_entries)
        while (missing := due - (self._max_blocks - self.num_entries)) > 0:
            node_id, greatest = max(self._nodes.items(), key=lambda item: item[1].num_entries)
            if (excess := greatest.num_entries - self._max_node_blocks) <= 0:
                break
            self._evict(node_id, greatest, min(missing, excess))
        return min(num_blocks, self._max_blocks - self.num_entries)

    def _evict(self, node_id: str, known: _NodeBlocks, num_blocks: int) -> None:
        """Forget so many blocks of a node, the slowest first."""
        for _ in range(num_blocks):
            if held := known.lower[Tier.DISK] or known.lower[Tier.HOST]:
                held.popitem()
                self.num_entries -= 1
            else:
                self._let_go(node_id, known.hashes.popitem()[0])

    def _store(self, node_id: str, known: _NodeBlocks, hashes: Iterable[BlockHash]) -> None:
        further = _further(hashes, known.hashes)
        for block_hash in islice(further, self._room(known, len(further))):
            self.num_entries += 1
            known.hashes[block_hash] = None
            self._holders.setdefault(block_hash, set()).add(node_id)

    def _change_lower(self, known: _NodeBlocks, held: dict[BlockHash, None], events: BlockEvents) -> None:
        before = len(held)
        for block_hash in events.removed:
            held.pop(block_hash, None)
        self.num_entries += len(held) - before
        further = _further(events.stored, held)
        num_taken = self._room(known, len(further))
        held.update(dict.fromkeys(islice(further, num_taken)))
        self.num_entries += num_taken

    def _drop(self, node_id: str, known: _NodeBlocks) -> None:
        """Forget everything that a node holds."""
        self._remove(node_id, known, tuple(known.hashes))
        self.num_entries -= sum(map(len, known.lower.values()))
        for held in known.lower.values():
            held.clear()

    def _remove(self, node_id: str, known: _NodeBlocks, hashes: Iterable[BlockHash]) -> None:
        for block_hash in hashes:
            if block_hash in known.hashes:
                del known.hashes[block_hash]
                self._let_go(node_id, block_hash)

    def _let_go(self, node_id: str, block_hash: BlockHash) -> None:
        """Note that a block which the node held has left its set."""
        self.num_entries -= 1
        self._holders[block_hash].discard(node_id)
        if not self._holders[block_hash]:
            del self._holders[block_hash]


def _further(hashes: Iterable[BlockHash], held: Collection[BlockHash]) -> Collection[BlockHash]:
    """Return those that are not held, once each, in their order."""
    return dict.fromkeys(block_hash for block_hash in hashes if block_hash not in held)
