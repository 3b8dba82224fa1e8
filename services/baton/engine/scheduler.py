"""The scheduler: which positions of which sequences the next pass computes.

Continuous batching with chunked prefill. Running sequences come first and take one token each, so that their pace
holds; what is left of the token budget goes to prompts in order of arrival. When blocks run out, the sequence admitted
last gives its blocks back and is computed again later: its output stays, so nobody sees it but the clock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from functools import partial

from baton.engine.runners.base import Span
from baton.engine.sampling import SampledToken
from baton.engine.sequence import Phase, Purpose, Sequence
from baton.errors import OutOfMemoryError
from baton.kv.pool import BlockId, BlockPool


@dataclass(frozen=True, slots=True)
class Step:
    """One forward pass."""

    sequences: list[Sequence]
    """Sequences computed, one per span."""
    spans: list[Span]
    """What is computed of each."""

    @property
    def sampled(self) -> list[Sequence]:
        """Return the sequences that get a token, in order of their rows of logits."""
        return [sequence for sequence, span in zip(self.sequences, self.spans, strict=True) if span.needs_logits]


@dataclass(frozen=True, slots=True)
class SchedulerLimits:
    """Bounds of a batch."""

    max_batch_size: int = 64
    """Sequences that hold blocks at once."""
    max_step_tokens: int = 512
    """Positions computed in one pass."""


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
        self._waiting.append(sequence)

    def admit(self) -> list[Sequence]:
        """Give blocks to waiting sequences, first come first served, as far as they go; return the admitted ones."""
        admitted = []
        while self._waiting and len(self._running) + len(self._receiving) < self._limits.max_batch_size:
            sequence = self._waiting[0]
            cached = self._cached_blocks(sequence)
            num_missing = self.pool.num_blocks_for(len(sequence.token_ids)) - len(cached)
            if num_missing > self.pool.num_available_beside(cached):
                break
            self._waiting.popleft()
            self.pool.acquire(cached)
            sequence.block_table = cached + self.pool.allocate(num_missing)
            sequence.num_computed = len(cached) * self.pool.block_tokens
            sequence.num_stored_blocks = len(cached)
            self._enter(sequence)
            admitted.append(sequence)
        return admitted

    def schedule(self) -> Step | None:
        """Return the next pass, or None if nothing can be computed; may take blocks from the last admitted."""
        budget = self._limits.max_step_tokens
        step = Step([], [])
        # Decoding sequences first: each needs one position, and their clients are reading along.
        for sequence in sorted(self._running, key=lambda sequence: sequence.num_pending > 1):
            if budget == 0:
                break
            if sequence.phase is not Phase.RUNNING:  # gave its blocks to one before it
                continue
            num_tokens = min(sequence.num_pending, budget)
            if sequence.request.chunk_tokens:
                num_tokens = min(num_tokens, sequence.request.chunk_tokens)
            if not self._reserve(sequence, sequence.num_computed + num_tokens):
                continue
            step.sequences.append(sequence)
            step.spans.append(_span(sequence, num_tokens))
            budget -= num_tokens
        return self._without_preempted(step) if step.spans else None

    def advance(self, step: Step, tokens: Seq[SampledToken]) -> None:
        """Enter the result of a pass: positions computed, blocks offered to the prefix cache, tokens appended."""
        for sequence, span in zip(step.sequences, step.spans, strict=True):
            sequence.num_computed = span.end
            self._store_full_blocks(sequence)
        for sequence, token in zip(step.sampled, tokens, strict=True):
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

    def check_integrity(self) -> None:
        """Prove the pool's invariants against the block tables of all sequences.

        Raises:
            AssertionError: If a block is lost or doubled.
        """
        self.pool.check_integrity(sequence.block_table for sequence in (*self._running, *self._receiving))

    def _cached_blocks(self, sequence: Sequence) -> list[BlockId]:
        """Return the cached prefix; never the whole sequence, for the last position must be computed for its logits."""
        if sequence.request.is_cache_bypassed:
            return []
        sequence.extend_hashes(self.pool.block_tokens)
        num_usable = (len(sequence.token_ids) - 1) // self.pool.block_tokens
        return self.pool.match(sequence.hashes[:num_usable])

    def _enter(self, sequence: Sequence) -> None:
        if not sequence.is_admitted:
            sequence.num_cached = sequence.num_computed
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
        num_missing = self.pool.num_blocks_for(num_tokens) - len(sequence.block_table)
        while num_missing > self.pool.num_available:
            victim = self._running[-1]
            self._preempt(victim)
            if victim is sequence:
                return False
        if num_missing > 0:
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
        if sequence.request.is_cache_bypassed:
            return
        sequence.extend_hashes(self.pool.block_tokens)
        num_full = sequence.num_computed // self.pool.block_tokens
        for block_index in range(sequence.num_stored_blocks, num_full):
            self.pool.store(sequence.block_table[block_index], sequence.hashes[block_index])
        sequence.num_stored_blocks = max(sequence.num_stored_blocks, num_full)

    def _without_preempted(self, step: Step) -> Step | None:
        """Drop sequences that were scheduled first and then lost their blocks to another."""
        kept = [
            (sequence, span)
            for sequence, span in zip(step.sequences, step.spans, strict=True)
            if sequence.phase is Phase.RUNNING
        ]
        return Step([sequence for sequence, _ in kept], [span for _, span in kept]) if kept else None


def _span(sequence: Sequence, num_tokens: int) -> Span:
    start, end = sequence.num_computed, sequence.num_computed + num_tokens
    export = sequence.request.export
    return Span(
        token_ids=sequence.token_ids[start:end],
        start=start,
        block_table=sequence.block_table,
        needs_logits=end == len(sequence.token_ids),
        layer_sink=partial(export, start) if export and end > sequence.request.kv_token_begin else None,
    )
