"""The scheduler: which positions of which sequences the next pass computes.

Continuous batching with chunked prefill. Running sequences come first and take one token each, so that their pace
holds; what is left of the token budget goes to prompts in order of arrival, several in one pass, and what prompts have
in common is computed once (`engine/sharing.py`). When blocks run out, the sequence admitted
last gives its blocks back and is computed again later: its output stays, so nobody sees it but the clock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence as Seq
from dataclasses import dataclass

from baton.engine.sampling import SampledToken
from baton.engine.sequence import Phase, Purpose, Sequence
from baton.engine.sharing import Beginning, Underway
from baton.engine.step import Step
from baton.errors import OutOfMemoryError
from baton.kv.pool import BlockPool


@dataclass(frozen=True, slots=True)
class SchedulerLimits:
    """Bounds of a batch."""

    max_batch_size: int = 64
    """Sequences that hold blocks at once."""
    max_step_tokens: int = 512
    """Positions computed in one pass."""
    max_step_prompts: int = 0
    """Prompts computed in one pass; 0: as many as `max_step_tokens` allows."""
    shares_prompts: bool = True
    """Whether equal beginnings of prompts that are there at the same time are computed once."""


SCORED_CHUNK_TOKENS = 128
"""Positions in one pass of a prompt whose log-probabilities are wanted: each brings a row of the vocabulary's size."""


class Scheduler:
    """Owns the queues and the block pool.

    Invariants: a waiting sequence has no blocks; a running or receiving one has blocks for all of [0, num_computed);
    each sequence is in exactly one of `_waiting`, `_running`, `_receiving` until it is finished.
    """

    def __init__(self, pool: BlockPool, limits: SchedulerLimits) -> None:
        self.pool = pool
        self._limits = limits
        self._waiting: deque[Sequence] = deque()
        self._running: list[Sequence] = []
        self._receiving: list[Sequence] = []
        self._num_arrived = 0

    @property
    def waiting(self) -> Seq[Sequence]:
        """Return the sequences without blocks."""
        return self._waiting

    @property
    def running(self) -> Seq[Sequence]:
        """Return the sequences that are computed, in order of admission."""
        return self._running

    @property
    def receiving(self) -> Seq[Sequence]:
        """Return the sequences whose KV arrives from another node."""
        return self._receiving

    def add(self, sequence: Sequence) -> None:
        """Queue a sequence.

        Raises:
            OutOfMemoryError: If it could not finish even alone.
        """
        num_tokens = sequence.num_prompt_tokens + sequence.max_output_tokens - 1  # the last one's KV is never needed
        num_blocks = self.pool.num_blocks_for(num_tokens)
        if num_blocks > self.pool.num_blocks:
            raise OutOfMemoryError(
                f"{num_tokens} positions need {num_blocks} KV blocks of {self.pool.block_tokens} tokens; "
                f"the node has {self.pool.num_blocks}"
            )
        self._num_arrived += 1
        sequence.arrival = self._num_arrived
        self._waiting.append(sequence)

    def schedule(self) -> Step:
        """Return the next pass, without spans if nothing can be computed; may take blocks from the last admitted.

        Decoding sequences come first: each needs one position, and their clients are reading along. Then prompts, those
        of sequences with blocks before those that get theirs here.
        """
        step, num_waiting = Step(), len(self._waiting)
        for sequence in sorted(self._running, key=lambda sequence: sequence.is_prefilling):
            num_tokens = self._room(sequence, step) if sequence.phase is Phase.RUNNING else 0  # it may have lost blocks
            if num_tokens and self._reserve(sequence, sequence.num_computed + num_tokens):
                step.add(sequence, num_tokens)
        if len(self._waiting) > num_waiting:  # some lost their blocks, perhaps after they were planned
            step = step.only(self._running)
        if self._waiting:
            self._admit(step)
        return step

    def advance(self, step: Step, tokens: Seq[tuple[Sequence, SampledToken]]) -> None:
        """Enter the result of a pass: positions computed, blocks offered to the prefix cache, tokens appended.

        Args:
            step: The pass.
            tokens: One for each sequence of `step.sampled` that has not been finished meanwhile.
        """
        scored = step.scored
        for sequence, span in zip(step.sequences, step.spans, strict=True):
            if sequence.phase is Phase.RUNNING:
                sequence.num_computed = span.end
                self._store_full_blocks(sequence)
        for scoring in scored:
            scoring.sequence.num_scored += scoring.num_rows
        for sequence, token in tokens:
            sequence.token_ids.append(token.token_id)

    def commit_received(self, sequence: Sequence) -> None:
        """Start decoding a receiving sequence: every position but that of its last token has its KV."""
        self._receiving.remove(sequence)
        sequence.num_computed = len(sequence.token_ids) - 1
        self._store_full_blocks(sequence)
        self._run(sequence)

    def fall_back(self, sequence: Sequence) -> None:
        """Compute a receiving sequence here, from its cached prefix on. What has arrived is not trusted."""
        self._receiving.remove(sequence)
        self._run(sequence)

    def finish(self, sequence: Sequence) -> None:
        """Take a sequence out, wherever it is, and release its blocks."""
        if sequence.phase is Phase.FINISHED:
            return
        queues = {Phase.WAITING: self._waiting, Phase.RUNNING: self._running, Phase.RECEIVING: self._receiving}
        queues[sequence.phase].remove(sequence)
        self._release(sequence)
        sequence.phase = Phase.FINISHED

    def distrust(self, sequence: Sequence) -> None:
        """Take the sequence's blocks out of the prefix cache: what they hold may be what spoiled its logits."""
        self.pool.forget(sequence.block_table)

    def check_integrity(self) -> None:
        """Prove the pool's invariants against the block tables of all sequences.

        Raises:
            AssertionError: If a block is lost or doubled.
        """
        self.pool.check_integrity(sequence.block_table for sequence in (*self._running, *self._receiving))

    def _admit(self, step: Step) -> None:
        """Give blocks to waiting sequences, first come first served, as far as they go, and add them to the pass.

        One that waits for what another computes lets those behind it pass.
        """
        underway = self._underway(step)
        for sequence in tuple(self._waiting):
            if len(self._running) + len(self._receiving) >= self._limits.max_batch_size:
                break
            beginning = underway.beginning_of(sequence)
            if beginning is None or (beginning.must_join and self._is_full(step)):
                continue
            if not self._has_blocks(sequence, beginning):
                break
            self._enter(sequence, beginning)
            step.admitted.append(sequence)
            if beginning.leader is not None:
                step.add_twin(sequence, beginning.leader, self.pool.block_tokens)
            elif sequence.phase is Phase.RUNNING:
                num_tokens = self._room(sequence, step)
                if num_tokens:
                    step.add(sequence, num_tokens)
                self._note(underway, sequence, step)

    def _underway(self, step: Step) -> Underway:
        """Return what the running sequences compute, in this pass and after it."""
        underway = Underway(self.pool)
        for sequence in self._running:
            self._note(underway, sequence, step)
        return underway

    def _note(self, underway: Underway, sequence: Sequence, step: Step) -> None:
        if self._limits.shares_prompts and not sequence.request.is_cache_bypassed and sequence.is_prefilling:
            underway.note(sequence, end=step.end_of(sequence))

    def _is_full(self, step: Step) -> bool:
        limits = self._limits
        has_all_prompts = 0 < limits.max_step_prompts <= step.num_prompts
        return step.num_tokens >= limits.max_step_tokens or has_all_prompts

    def _room(self, sequence: Sequence, step: Step) -> int:
        """Return how many positions of a sequence the pass has room for."""
        room = self._limits.max_step_tokens - step.num_tokens
        if not sequence.is_prefilling:
            return min(1, room)
        if self._is_full(step):
            return 0
        num_tokens = min(sequence.num_pending, room)
        if sequence.num_scored < sequence.score_end:
            num_tokens = min(num_tokens, SCORED_CHUNK_TOKENS)
        return min(num_tokens, sequence.request.chunk_tokens or num_tokens)

    def _has_blocks(self, sequence: Sequence, beginning: Beginning) -> bool:
        num_missing = self.pool.num_blocks_for(len(sequence.token_ids)) - len(beginning.blocks)
        return num_missing <= self.pool.num_available_beside(beginning.blocks)

    def _enter(self, sequence: Sequence, beginning: Beginning) -> None:
        """Take a sequence from the queue, with its blocks."""
        self._waiting.remove(sequence)
        self.pool.acquire(beginning.blocks)
        num_missing = self.pool.num_blocks_for(len(sequence.token_ids)) - len(beginning.blocks)
        sequence.block_table = beginning.blocks + self.pool.allocate(num_missing)
        sequence.num_stored_blocks = len(beginning.blocks)
        num_tokens = len(beginning.blocks) * self.pool.block_tokens
        sequence.num_computed = len(sequence.token_ids) if beginning.leader is not None else num_tokens
        if not sequence.is_admitted:
            sequence.num_cached = beginning.num_cached_blocks * self.pool.block_tokens
            sequence.num_shared = sequence.num_computed - sequence.num_cached
            sequence.is_admitted = True
        if sequence.purpose is Purpose.RECEIVE:
            sequence.phase = Phase.RECEIVING
            self._receiving.append(sequence)
        else:
            self._run(sequence)

    def _run(self, sequence: Sequence) -> None:
        sequence.purpose = Purpose.GENERATE if sequence.purpose is Purpose.RECEIVE else sequence.purpose
        sequence.phase = Phase.RUNNING
        self._running.append(sequence)

    def _reserve(self, sequence: Sequence, num_tokens: int) -> bool:
        """Make sure of blocks for `num_tokens` positions; return False if the sequence had to give up its own."""
        if num_tokens <= len(sequence.block_table) * self.pool.block_tokens:
            return True
        num_missing = self.pool.num_blocks_for(num_tokens) - len(sequence.block_table)
        while num_missing > self.pool.num_available:
            victim = self._running[-1]
            self._preempt(victim)
            if victim is sequence:
                return False
        sequence.block_table += self.pool.allocate(num_missing)
        return True

    def _preempt(self, sequence: Sequence) -> None:
        self._running.remove(sequence)
        self._release(sequence)
        sequence.num_preemptions += 1
        sequence.phase = Phase.WAITING
        self._waiting.appendleft(sequence)

    def _release(self, sequence: Sequence) -> None:
        self.pool.release(sequence.block_table)
        sequence.block_table = []
        sequence.num_computed = sequence.num_stored_blocks = 0

    def _store_full_blocks(self, sequence: Sequence) -> None:
        num_full = sequence.num_computed // self.pool.block_tokens
        if num_full <= sequence.num_stored_blocks or sequence.request.is_cache_bypassed:
            return
        sequence.extend_hashes(self.pool.block_tokens)
        for block_index in range(sequence.num_stored_blocks, num_full):
            self.pool.store(sequence.block_table[block_index], sequence.hashes[block_index])
        sequence.num_stored_blocks = max(sequence.num_stored_blocks, num_full)
