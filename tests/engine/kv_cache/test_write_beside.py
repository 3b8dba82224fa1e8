"""KV written while the device computes, and states written into slots: the host's own time, and nobody waits for it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import cast

from baton.engine.kv_cache.ingest import FrameCursor, GapBudget, Ingest
from baton.engine.kv_cache.state_slots import StateSlots
from baton.engine.request import Purpose
from baton.engine.runners.base import LayerKv, Runner
from baton.engine.sequence import Phase, Sequence, new_sequence
from baton.errors import BatonError
from baton.kv.kv_format import LayerSpec, StateTensor
from baton.kv.stream import FrameKind, KvFrame
from engine.rig import prompt_of, request_of

BLOCK_TOKENS = 4
BYTE_SECONDS = 0.001
STATE = (StateTensor("recurrent", (8,)),)


class NotedRunner:
    """Takes a millisecond for each byte that is written, and notes what is; a pass that is waited for takes longer."""

    def __init__(self, error: BatonError | None = None) -> None:
        layers = (LayerSpec(1, 4, 4), LayerSpec(0, 0, 0, state=STATE))
        self.info = SimpleNamespace(layout=SimpleNamespace(layers=layers))
        self.seconds = 0.0
        self.written: list[tuple[int, int, int]] = []
        """Layer, first position, positions."""
        self.states: list[tuple[int, int, bytes]] = []
        """Slot, layer, contents."""
        self._error = error

    def settle(self) -> None:
        """Wait for a pass."""
        self.seconds += 0.2

    def write_kv(self, _block_table: list[int], layer: int, start: int, num_tokens: int, kv: LayerKv) -> None:
        """Note it."""
        if self._error is not None:
            raise self._error
        self.seconds += BYTE_SECONDS * (len(kv.keys) + len(kv.values))
        self.written.append((layer, start, num_tokens))

    def write_state(self, slot: int, layer: int, contents: bytes) -> None:
        """Note it."""
        self.states.append((slot, layer, bytes(contents)))


class Bench:
    """What arrives for some sequences, and what has become of them."""

    def __init__(self, error: BatonError | None = None) -> None:
        self.runner = NotedRunner(error)
        self.failed: list[Sequence] = []
        self.landed: list[Sequence] = []
        self.ingest = Ingest(
            cast(Runner, self.runner),
            GapBudget(),
            lambda: self.runner.seconds,
            failing=self._failing,
            on_landed=self.landed.append,
        )

    @contextmanager
    def _failing(self, sequence: Sequence) -> Iterator[None]:
        try:
            yield
        except BatonError:
            self.failed.append(sequence)

    def frame(self, num_tokens: int) -> FrameCursor:
        """Return a frame of the first layer: 2 bytes a position."""
        return FrameCursor(KvFrame(0, 1, 0, num_tokens, bytes(num_tokens), bytes(num_tokens)), 1, BLOCK_TOKENS)

    def learn(self) -> None:
        """Write a frame or two while nobody generates: what a byte costs is known then."""
        for num_tokens in (4, 8, 16, 32) * 8:
            self.ingest.add(receiving("known"), self.frame(num_tokens))
            self.ingest.run(0.0, 0)
        self.runner.written.clear()


def receiving(name: str) -> Sequence:
    """Return a sequence whose KV comes from elsewhere."""
    sequence = new_sequence(
        request_of(prompt_of(41), name, purpose=Purpose.RECEIVE),
        max_context_tokens=100,
        max_pool_tokens=100,
        eos_token_ids=(),
        model_revision_digest="a",
        block_tokens=BLOCK_TOKENS,
    )
    sequence.phase = Phase.RECEIVING
    return sequence


def test_beside_a_pass_as_much_is_written_as_the_host_has_time_for() -> None:
    """In whole blocks; of what is left the rest follows beside the next one, and then there is nothing to write."""
    bench, sequence = Bench(), receiving("r")
    bench.learn()
    bench.ingest.add(sequence, bench.frame(20))

    assert bench.ingest.write_beside(0.018)
    assert bench.runner.written == [(0, 0, 8)]
    assert bench.ingest.write_beside(0.5)
    assert bench.runner.written == [(0, 0, 8), (0, 8, 12)]
    assert bench.landed[-1] is sequence
    assert bench.ingest.write_beside(0.5) is False


def test_nothing_is_written_beside_a_pass_that_is_over_too_soon() -> None:
    """Not even the smallest piece, and none is lost: the next gap has it."""
    bench, sequence = Bench(), receiving("r")
    bench.learn()
    bench.ingest.add(sequence, bench.frame(8))

    assert not bench.ingest.write_beside(0.006)
    assert not bench.ingest.write_beside(0.0)
    assert bench.runner.written == []
    bench.ingest.run(0.0, 0)
    assert bench.runner.written == [(0, 0, 8)]


def test_before_anything_is_known_of_writing_no_pass_is_made_to_wait() -> None:
    """The first piece is written, and timed, in a gap."""
    bench = Bench()
    bench.ingest.add(receiving("r"), bench.frame(8))

    assert not bench.ingest.write_beside(10.0)
    assert bench.runner.written == []


def test_a_gap_ends_with_the_first_piece_that_does_not_fit() -> None:
    """However many others wait: those who generate would be held up by all of them."""
    bench = Bench()
    bench.learn()
    sequences = [receiving(name) for name in "abc"]
    for sequence in sequences:
        bench.ingest.add(sequence, bench.frame(8))
    bench.ingest.run(0.0, 100)  # takes in what has arrived
    bench.runner.written.clear()

    bench.ingest.run(0.0, 100)

    assert len(bench.runner.written) == 1


def test_what_follows_frames_of_which_none_waits_happens_at_once() -> None:
    """Nothing would ever call it else."""
    bench, sequence = Bench(), receiving("r")
    calls: list[str] = []

    bench.ingest.after(sequence, lambda: calls.append("none waits"))
    bench.ingest.add(sequence, bench.frame(4))
    bench.ingest.after(sequence, lambda: calls.append("one waited"))

    assert calls == ["none waits"]
    bench.ingest.run(0.0, 0)
    assert calls == ["none waits", "one waited"]


def test_a_write_that_fails_counts_as_no_time_and_the_others_go_on() -> None:
    """The request fails, by its own error."""
    bench, sequence = Bench(BatonError("no such block")), receiving("r")
    bench.ingest.add(sequence, bench.frame(4))
    bench.ingest.run(0.0, 0)

    assert bench.failed[0] is sequence
    assert bench.ingest.landing.bytes_per_second == 0.0


def test_a_state_goes_into_its_sequence_s_slot_in_one_piece() -> None:
    """However little fits: half of a state is of no use to anybody."""
    bench, sequence, slots = Bench(), receiving("r"), StateSlots(4, BLOCK_TOKENS)
    bench.learn()
    slots.take(receiving("other"), 0)
    slots.take(sequence, 0)
    contents = bytes(range(32))
    frame = KvFrame(1, 1, 0, 40, contents, b"", kind=FrameKind.STATE, state=STATE)
    bench.ingest.add(sequence, FrameCursor(frame, 0, BLOCK_TOKENS))

    assert not bench.ingest.write_beside(0.02)
    assert bench.runner.states == []
    bench.ingest.run(0.001, 100)

    assert bench.runner.states == [(1, 1, contents)]
    assert not bench.ingest.is_pending


def test_the_host_s_time_is_not_owed_by_the_gap_before() -> None:
    """While the device computes nobody is delayed: what a gap overdrew is no reason to stand by."""
    budget = GapBudget()
    budget.begin(0.0, num_running=0, num_waiting=1)
    for num_bytes in (10, 20, 30) * 10:
        budget.note_write(num_bytes, BYTE_SECONDS * num_bytes)
    budget.begin(0.001, num_running=10, num_waiting=1)
    budget.note_write(1000, 1.0)

    budget.begin_free(0.1)

    assert 90 < budget.affordable_bytes() <= 101
    assert math.isfinite(budget.affordable_bytes())
