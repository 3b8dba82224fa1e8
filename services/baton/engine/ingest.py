"""KV that has arrived and is not in the blocks yet: written between passes, in pieces that fit into the gap."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager

from baton.engine.ingest_pace import IngestPace
from baton.engine.kv_exchange import FrameCursor
from baton.engine.runners.base import Runner
from baton.engine.sequence import Phase, Sequence


class Ingest:
    """Frames of receiving sequences, and what is to happen behind them, in the order in which they came.

    Invariants: what is asked for a sequence happens after all of its earlier frames have been written; sequences take
    turns piece by piece; every gap writes a piece; nothing is written for a sequence that does not receive any more.

    Args:
        runner: Where the KV goes.
        pace: How much is written in a gap.
        clock: Seconds, monotonic.
        failing: Fails a sequence if the runner raises.
        on_landed: Called with the sequence when a frame of it is in the blocks.
    """

    def __init__(
        self,
        runner: Runner,
        pace: IngestPace,
        clock: Callable[[], float],
        *,
        failing: Callable[[Sequence], AbstractContextManager[None]],
        on_landed: Callable[[Sequence], None],
    ) -> None:
        self._runner = runner
        self._pace = pace
        self._clock = clock
        self._failing = failing
        self._on_landed = on_landed
        self._queues: dict[Sequence, deque[FrameCursor | Callable[[], None]]] = {}

    @property
    def is_pending(self) -> bool:
        """Return whether something waits to be written."""
        return bool(self._queues)

    def add(self, sequence: Sequence, frame: FrameCursor) -> None:
        """Queue a frame."""
        self._queues.setdefault(sequence, deque()).append(frame)

    def after(self, sequence: Sequence, function: Callable[[], None]) -> None:
        """Call a function when every frame of the sequence that came before is in the blocks; now, if none waits."""
        queue = self._queues.get(sequence)
        if queue is None:
            function()
        else:
            queue.append(function)

    def drop(self, sequence: Sequence) -> None:
        """Forget what waits for a sequence."""
        self._queues.pop(sequence, None)

    def run(self, pass_seconds: float | None) -> None:
        """Write what fits between two passes, a piece at least.

        Args:
            pass_seconds: What the last pass took; None: nobody generates, and everything is written.
        """
        if not self._queues:
            return
        self._pace.begin(pass_seconds)
        is_first = True
        while self._queues and (is_first or self._pace.affordable_bytes() > 0):
            sequence = next(iter(self._queues))
            queue = self._queues.pop(sequence)
            if sequence.phase is not Phase.RECEIVING:
                continue
            if not self._write(sequence, queue[0], must=is_first):
                self._queues[sequence] = queue
                break
            is_first = False
            self._go_on(sequence, queue)

    def _write(self, sequence: Sequence, item: FrameCursor | Callable[[], None], *, must: bool) -> bool:
        """Write a piece; return False if the smallest does not fit."""
        assert isinstance(item, FrameCursor), "what follows frames happened when the last of them was written"
        with self._failing(sequence):
            piece = item.next_piece(self._pace.affordable_bytes(), must=must)
            if piece is None:
                return False
            started = self._clock()
            self._runner.write_kv(sequence.block_table, piece.layer, piece.start, piece.num_tokens, piece.kv)
            self._pace.note_write(piece.num_bytes, self._clock() - started)
        return True

    def _go_on(self, sequence: Sequence, queue: deque[FrameCursor | Callable[[], None]]) -> None:
        """After a piece: tell of a frame that is complete, do what follows it, and let others have their turn."""
        frame = queue[0]
        if isinstance(frame, FrameCursor) and frame.is_complete:
            queue.popleft()
            self._on_landed(sequence)
        while queue and sequence.phase is Phase.RECEIVING:
            item = queue[0]
            if isinstance(item, FrameCursor):
                self._queues[sequence] = queue
                return
            queue.popleft()
            item()
