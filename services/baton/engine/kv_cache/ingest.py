"""KV that enters and leaves blocks between passes: what arrives is written in pieces that fit into the gap.

A gap is never longer than those who wait for KV gain by what all others lose: what is moved in it delays every sequence
that runs; what is not moved delays those that wait for it by a pass. And what arrives is moved as fast as it arrives,
or ever more would wait.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import NamedTuple

import numpy as np

from baton.engine.events import LandingLoad
from baton.engine.request import EXPORT_TOKENS
from baton.engine.runners.base import LayerKv, Runner
from baton.engine.sequence import Phase, Sequence
from baton.engine.step_cost import StepCostModel, StepWork
from baton.kv.stream import KvFrame

MAX_DUE_PASSES = 9.0
"""Passes of time that keeping up takes in a gap at most: a tenth of the time is for passes, whatever arrives."""
_MAX_DEBT_GAPS = 4.0
"""Time overdrawn is paid back by at most this many gaps: nobody waits longer than that after a pause."""
_RATE_DECAY = 0.98
"""Weight of a piece after another in the rate of writing."""


class KvPiece(NamedTuple):
    """Consecutive positions of one layer of a frame; what `Runner.write_kv` takes after the block table."""

    layer: int
    start: int
    num_tokens: int
    """Positions, 1 or more."""
    kv: LayerKv

    @property
    def num_bytes(self) -> int:
        """Return the size of K and V."""
        return len(self.kv.keys) + len(self.kv.values)


class FrameCursor:
    """How far a received frame has been written: layer by layer, in pieces that end where blocks do."""

    def __init__(self, frame: KvFrame, num_kv_heads: int, block_tokens: int) -> None:
        self._frame, self._num_kv_heads = frame, num_kv_heads
        self._block_tokens = block_tokens
        self._layer_bytes = (len(frame.keys) + len(frame.values)) // frame.num_layers
        self._index = 0  # of the layer in the frame
        self._offset = 0  # positions of it that are written

    @property
    def num_bytes_left(self) -> int:
        """Return the bytes that have not been written."""
        num_done_tokens = self._index * self._frame.num_tokens + self._offset
        return (
            self._frame.num_layers * self._layer_bytes - num_done_tokens * self._layer_bytes // self._frame.num_tokens
        )

    @property
    def is_complete(self) -> bool:
        """Return whether nothing is left."""
        return self._index == self._frame.num_layers

    def next_piece(self, max_bytes: float, *, must: bool) -> KvPiece | None:
        """Take the next piece: as much of a layer as fits, in whole blocks.

        `must`: the smallest piece is taken where none fits. Returns None if no piece fits and none must be taken.
        """
        frame, offset = self._frame, self._offset
        num_tokens = self._num_fitting(max_bytes)
        if not num_tokens:
            if not must:
                return None
            num_tokens = frame.num_tokens if frame.state else self._end_of_blocks(1) - offset
        layer, kv = frame.layer_begin + self._index, self._layer()
        if num_tokens < frame.num_tokens:
            kv = LayerKv(self._cut(kv.keys, num_tokens), self._cut(kv.values, num_tokens))
        self._offset += num_tokens
        if self._offset == frame.num_tokens:
            self._index, self._offset = self._index + 1, 0
        return KvPiece(layer, frame.token_begin + offset, num_tokens, kv)

    def _num_fitting(self, max_bytes: float) -> int:
        """Return how many positions fit: to the end of the layer, or of a block; of a state all or none."""
        frame = self._frame
        left, token_bytes = frame.num_tokens - self._offset, self._layer_bytes / frame.num_tokens
        if left * token_bytes <= max_bytes:
            return left
        if frame.state:
            return 0
        end = frame.token_begin + self._offset + int(max_bytes / token_bytes)
        return max(0, end - end % self._block_tokens - frame.token_begin - self._offset)

    def _end_of_blocks(self, num_blocks: int) -> int:
        """Return the offset at which blocks from the current position on end."""
        frame = self._frame
        end = (frame.token_begin + self._offset) // self._block_tokens + num_blocks
        return min(frame.num_tokens, end * self._block_tokens - frame.token_begin)

    def _layer(self) -> LayerKv:
        """Return K and V of the current layer."""
        frame, index = self._frame, self._index
        key_bytes, value_bytes = len(frame.keys) // frame.num_layers, len(frame.values) // frame.num_layers
        return LayerKv(
            memoryview(frame.keys)[index * key_bytes : (index + 1) * key_bytes],
            memoryview(frame.values)[index * value_bytes : (index + 1) * value_bytes],
        )

    def _cut(self, data: bytes | memoryview, num_tokens: int) -> memoryview:
        """Return positions of a layer's keys or values, [num_kv_heads, num_tokens, head_dim], one after the other."""
        rows = np.frombuffer(data, np.uint8).reshape(self._num_kv_heads, self._frame.num_tokens, -1)
        return np.ascontiguousarray(rows[:, self._offset : self._offset + num_tokens]).data.cast("B")


class Ingest:
    """Frames of receiving sequences, and what is to happen behind them, in the order in which they came.

    Invariants: what is asked for a sequence happens after all of its earlier frames have been written; sequences take
    turns piece by piece; every gap writes a piece; nothing is written for a sequence that does not receive any more.
    `failing` fails a sequence if the runner raises; `on_landed` gets it when a frame of it is in the blocks.
    """

    def __init__(
        self,
        runner: Runner,
        budget: GapBudget,
        clock: Callable[[], float],
        *,
        failing: Callable[[Sequence], AbstractContextManager[None]],
        on_landed: Callable[[Sequence], None],
    ) -> None:
        self._runner, self._budget = runner, budget
        self._clock, self._failing = clock, failing
        self._on_landed = on_landed
        self._rate = MoveRate()
        self._queues: dict[Sequence, deque[FrameCursor | Callable[[], None]]] = {}

    @property
    def is_pending(self) -> bool:
        """Return whether something waits to be written."""
        return bool(self._queues)

    @property
    def landing(self) -> LandingLoad:
        """Return how fast frames are written, and what waits."""
        waiting = (item for queue in self._queues.values() for item in queue if isinstance(item, FrameCursor))
        return LandingLoad(self._rate.bytes_per_second, sum(item.num_bytes_left for item in waiting))

    def add(self, sequence: Sequence, frame: FrameCursor) -> None:
        """Queue a frame."""
        self._queues.setdefault(sequence, deque()).append(frame)
        self._budget.note_arrival(frame.num_bytes_left)

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

    def run(self, pass_seconds: float, num_running: int) -> None:
        """Write what fits between two passes, a piece at least; everything if no sequence (`num_running`) waits."""
        if not self._queues:
            return
        self._budget.begin(pass_seconds, num_running=num_running, num_waiting=len(self._queues))
        is_first = True
        while self._queues and (is_first or self._budget.affordable_bytes() > 0):
            if not self._write_next(must=is_first):
                break
            is_first = False

    def write_beside(self, seconds: float) -> bool:
        """Write a piece while the device computes, if one fits into the time that the host has; return whether."""
        if not self._queues:
            return False
        self._budget.begin_free(seconds)
        return self._budget.affordable_bytes() > 0 and self._write_next(must=False)

    def _write_next(self, *, must: bool) -> bool:
        """Write a piece of the sequence whose turn it is; return False if the smallest does not fit."""
        sequence = next(iter(self._queues))
        queue = self._queues.pop(sequence)
        if sequence.phase is Phase.RECEIVING:
            if not self._write(sequence, queue[0], must=must):
                self._queues[sequence] = queue
                return False
            self._go_on(sequence, queue)
        return True

    def _write(self, sequence: Sequence, item: FrameCursor | Callable[[], None], *, must: bool) -> bool:
        """Write a piece; return False if the smallest does not fit."""
        assert isinstance(item, FrameCursor), "what follows frames happened when the last of them was written"
        with self._failing(sequence):
            piece = item.next_piece(self._budget.affordable_bytes(), must=must)
            if piece is None:
                return False
            self._runner.settle()
            started = self._clock()
            if sequence.state is not None and self._runner.info.layout.layers[piece.layer].state:
                self._runner.write_state(sequence.state.slot, piece.layer, piece.kv.keys)
            else:
                self._runner.write_kv(sequence.block_table, piece.layer, piece.start, piece.num_tokens, piece.kv)
            seconds = self._clock() - started
            self._budget.note_write(piece.num_bytes, seconds)
            self._rate.note(piece.num_bytes, seconds)
        return True

    def _go_on(self, sequence: Sequence, queue: deque[FrameCursor | Callable[[], None]]) -> None:
        """After a piece: tell of a frame that is complete, call what waits behind it, and let other sequences go on."""
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


def export_cached(runner: Runner, sequence: Sequence) -> int:
    """Hand out cached KV that the caller lacks, [token_begin, num_computed); return how many bytes that was."""
    export = sequence.request.export
    if export is None:
        return 0
    for start in range(export.token_begin, sequence.num_computed, EXPORT_TOKENS):
        num_tokens = min(EXPORT_TOKENS, sequence.num_computed - start)
        for layer in runner.info.layout.kv_layers:
            export.sink(start, layer, runner.read_kv(sequence.block_table, layer, start, num_tokens))
    return max(0, sequence.num_computed - export.token_begin) * runner.info.layout.num_token_bytes()


def gap_seconds(pass_seconds: float, *, num_running: int, num_waiting: int, due_seconds: float) -> float:
    """Return for how long KV is moved between two passes.

    Interval table of the gap: [0, due) keeps up with what has arrived; what follows gains on what waits, and ends where
    the sequences that run lose, num_running · seconds, what those that wait gain, num_waiting · a pass.

    `pass_seconds`: what a pass takes. `num_running`: sequences that the gap delays; 0: nobody, and nothing is held
    back. `num_waiting`: sequences that wait for KV to be moved. `due_seconds`: what it takes to move what has arrived
    since the gap before. Of more than `MAX_DUE_PASSES` passes the rest waits: more arrives than can be moved.
    """
    if not num_running:
        return math.inf
    return min(due_seconds, MAX_DUE_PASSES * pass_seconds) + pass_seconds * num_waiting / num_running


class GapBudget:
    """Gives each gap between two passes its time, and tells what can be moved in what is left of it.

    Moving is timed as it happens. A gap that took longer shortens the ones after it; one that was not used up lengthens
    none, since each is felt by itself.
    """

    def __init__(self) -> None:
        self._cost = StepCostModel()
        self._passes = (math.inf, math.inf)  # the last two
        self._num_due_bytes = 0
        self._left_seconds = math.inf

    def note_arrival(self, num_bytes: int) -> None:
        """Take in that so many bytes are to be moved, besides what waits already."""
        self._num_due_bytes += num_bytes

    def begin(self, pass_seconds: float, *, num_running: int, num_waiting: int) -> None:
        """Begin a gap. The gap delays `num_running` sequences; 0: nothing is held back."""
        due_seconds, self._num_due_bytes = self._seconds(self._num_due_bytes), 0
        self._passes = (self._passes[1], pass_seconds)
        seconds = gap_seconds(
            min(self._passes),  # one long pass is no reason for a long gap
            num_running=num_running,
            num_waiting=num_waiting,
            due_seconds=due_seconds,
        )
        debt_seconds = min(0.0, self._left_seconds)
        self._left_seconds = seconds + (max(debt_seconds, -_MAX_DEBT_GAPS * seconds) if debt_seconds else 0.0)

    def begin_free(self, seconds: float) -> None:
        """Begin a time in which the device computes and the host has nothing to do: nobody is delayed."""
        self._left_seconds = seconds

    def note_write(self, num_bytes: int, seconds: float) -> None:
        """Take in what it took to move a piece."""
        self._cost.note(StepWork(num_bytes, 0), seconds, has_prompts=False)
        self._left_seconds -= seconds

    def affordable_bytes(self) -> float:
        """Return the size of the largest piece that fits into what is left of the gap; 0 where none does."""
        if math.isinf(self._left_seconds):
            return math.inf
        cost = self._cost.cost
        if cost is None or self._left_seconds <= cost.fixed_seconds:
            return 0.0
        if not cost.token_seconds:
            return math.inf
        return (self._left_seconds - cost.fixed_seconds) / cost.token_seconds

    def _seconds(self, num_bytes: int) -> float:
        cost = self._cost.cost
        return cost.seconds(StepWork(num_bytes, 0)) if cost is not None and num_bytes else 0.0


class MoveRate:
    """Rate of moving KV into or out of blocks, of the last pieces: sums in which old ones fade.

    Attributes:
        bytes_per_second: The rate; 0: nothing has been moved, or it took no time.
    """

    def __init__(self) -> None:
        self.bytes_per_second = 0.0
        self._num_bytes = self._seconds = 0.0

    def note(self, num_bytes: int, seconds: float) -> None:
        """Take in what it took to move a piece."""
        self._num_bytes = _RATE_DECAY * self._num_bytes + num_bytes
        self._seconds = _RATE_DECAY * self._seconds + seconds
        self.bytes_per_second = self._num_bytes / self._seconds if self._seconds > 0.0 else 0.0
