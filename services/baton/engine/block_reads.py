"""Cached blocks that other nodes ask for: read between passes, in pieces that fit, so that nobody waits for them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future

from baton.engine.held_blocks import HeldBlocks
from baton.engine.ingest_pace import IngestPace
from baton.engine.runners.base import LayerKv
from baton.kv.hashing import BlockHash


class BlockRead:
    """K and V of some consecutive blocks in some layers, as far as they have been read.

    Args:
        hashes: Of the blocks.
        layers: Which layers.
        answer: Gets K and V layer by layer, or why there are none; cancelled: nobody wants them any more.
    """

    def __init__(self, hashes: Sequence[BlockHash], layers: range, answer: Future[list[LayerKv]]) -> None:
        self.hashes = hashes
        self.answer = answer
        self._layers = layers
        self._kvs: list[LayerKv] = []

    @property
    def layer(self) -> int:
        """Return the next layer to read."""
        return self._layers[len(self._kvs)]

    def add(self, kv: LayerKv) -> bool:
        """Take the next layer; return whether it was the last."""
        self._kvs.append(kv)
        if len(self._kvs) < len(self._layers):
            return False
        self.answer.set_result(self._kvs)
        return True


class BlockReads:
    """What has been asked and is not read yet.

    Invariants: no block is referenced between two pieces, so that none is kept from running requests; one that has left
    the prefix cache meanwhile fails its read. Every gap between passes reads a piece, a layer of one read.

    Args:
        held: Where K and V are.
        pace: How much is read in a gap.
        clock: Seconds, monotonic.
    """

    def __init__(self, held: HeldBlocks, pace: IngestPace, clock: Callable[[], float]) -> None:
        self._held = held
        self._pace = pace
        self._clock = clock
        self._queue: deque[BlockRead] = deque()

    @property
    def is_pending(self) -> bool:
        """Return whether something waits to be read."""
        return bool(self._queue)

    def add(self, read: BlockRead) -> None:
        """Queue a read."""
        self._queue.append(read)

    def run(self, pass_seconds: float | None) -> None:
        """Read what fits between two passes, a piece at least.

        Args:
            pass_seconds: What the last pass took; None: nobody generates, and everything is read.
        """
        if not self._queue:
            return
        self._pace.begin(pass_seconds)
        is_first = True
        while self._queue and (is_first or self._pace.affordable_bytes() >= self._next_bytes()):
            read = self._queue[0]
            if not read.answer.running() and not read.answer.set_running_or_notify_cancel():
                self._queue.popleft()
                continue
            is_first = False
            if self._read(read):
                self._queue.popleft()

    def _next_bytes(self) -> int:
        read = self._queue[0]
        return len(read.hashes) * self._held.block_bytes(read.layer)

    def _read(self, read: BlockRead) -> bool:
        """Read a layer; return whether nothing is left to do for the read."""
        started = self._clock()
        try:
            kv = self._held.read(read.hashes, read.layer)
        except Exception as error:  # the edge of the read: the engine must not die of it
            read.answer.set_exception(error)
            return True
        self._pace.note_write(len(kv.keys) + len(kv.values), self._clock() - started)
        return read.add(kv)
