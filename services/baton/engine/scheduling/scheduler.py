"""The scheduler: which positions of which sequences the next pass computes.

Continuous batching with chunked prefill. Running sequences come first and take one token each, so that their pace
holds; what is left of the token budget is shared by prompts (`order.py`), several in one pass, and what they
have in common is computed once (`prefix_match.py`). When blocks run out, the sequence whose turn is last gives its
blocks back and is computed again later: its output stays, so nobody sees it but the clock.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Sequence as Seq
from operator import attrgetter

from baton.engine.kv_cache.disk_tier import BlockKv, DiskTier
from baton.engine.kv_cache.offload import Offload, SwapIn, SwapOut
from baton.engine.limits import SchedulerLimits
from baton.engine.scheduling.order import Claim, due_seconds, share
from baton.engine.scheduling.prefix_match import InFlightPrefixes, ReusablePrefix
from baton.engine.scheduling.restoring import fill_first
from baton.engine.scheduling.step import SequenceProgress, Step
from baton.engine.sequence import Phase, Purpose, Sequence
from baton.engine.step_cost import StepCostModel
from baton.errors import OutOfMemoryError
from baton.kv.host_store import HostBlockStore
from baton.kv.pool import BlockId, BlockPool

MAX_CANDIDATES = 128
"""Waiting sequences looked at in one pass."""

_turn = attrgetter("turn")


class Scheduler:
    """Owns the queues and the block pool.

    Invariants: a waiting sequence has no blocks; a running or receiving one has blocks for all of [0, num_computed);
    each sequence is in exactly one of `_waiting`, `_running`, `_receiving` until it is finished; the first two are in
    order of turns.
    """

    def __init__(
        self,
        pool: BlockPool,
        limits: SchedulerLimits,
        *,
        block_bytes: int = 0,
        disk: DiskTier | None = None,
    ) -> None:
        self.pool = pool
        store = HostBlockStore[BlockKv](limits.max_host_bytes, block_bytes)
        self.offload = Offload(store, block_bytes=block_bytes, block_tokens=pool.block_tokens, disk=disk)
        pool.on_evict = self.offload.note_evicted
        self.progress = SequenceProgress(pool)
        self._limits = limits
        self.is_sparing = False  # whether sequences are computed one after the other, for memory is short

        self._waiting: list[Sequence] = []
        self._running: list[Sequence] = []
        self._last = Step()
        self._has_same_batch = False  # as when `_last` was planned
        self._receiving: list[Sequence] = []
        self._num_arrived = 0
        self._pace = StepCostModel()

    @property
    def waiting(self) -> Seq[Sequence]:
        """Return the sequences without blocks, in order of turns."""
        return self._waiting

    @property
    def running(self) -> Seq[Sequence]:
        """Return the sequences that are computed, in order of turns."""
        return self._running

    @property
    def receiving(self) -> Seq[Sequence]:
        """Return the sequences whose KV arrives from another node."""
        return self._receiving

    def add(self, sequence: Sequence, now: float = 0.0) -> None:
        """Queue a sequence.

        Args:
            sequence: Who.
            now: Seconds on a monotonic clock; priorities are weighed against it.

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
        sequence.due_seconds = due_seconds(now, sequence.request.priority, self._prompt_seconds(sequence))
        insort(self._waiting, sequence, key=_turn)

    def schedule(self) -> Step:
        """Return the next pass, without spans if nothing can be computed; may take blocks from whose turn is last.

        Decoding sequences come first: each needs one position, and their clients are reading along. Then prompts, those
        of sequences with blocks before those that get theirs here.
        """
        self.offload.forget_evicted()  # blocks that were taken for anything but a plan are overwritten by now
        num_waiting = len(self._waiting)
        self._reserve_blocks()
        is_short = len(self._waiting) > num_waiting
        if self._may_repeat():
            self._last = self._last.again()
            self._last.swap_outs = self.swap_outs()
            return self._last
        last = self._last
        self._last = step = Step(unproven=frozenset(() if last.is_computed else last.stored))
        self._has_same_batch = True
        prompts = self._add_decoding(step)
        step.max_tokens = self._max_tokens(step, prompts)
        if prompts:
            self._add_prompts(step, prompts)
        if self._waiting and not (is_short and step.spans):  # who lost blocks would come back for a pass or two
            self._admit(step)
        step.swap_outs = self.swap_outs()
        return step

    def swap_outs(self) -> list[SwapOut]:
        """Return, once, the blocks to copy to host memory: of those taken since the last call, and to be taken next."""
        return self.offload.drain(self.pool, self._pace)

    def undo(self, step: Step) -> None:
        """Take a pass back that was under way when one failed: what of it still runs is computed again, later."""
        self.progress.take_back(step)
        self.offload.forget([*step.filled, *step.stored])
        for sequence in reversed(step.members):
            if sequence.phase is Phase.RUNNING:
                self._preempt(sequence)

    def note_pass(self, step: Step, seconds: float) -> None:
        """Take in what a pass took, from when the device could begin it until its tokens were there."""
        if step.spans:
            self._pace.note(step.work, seconds, has_prompts=step.num_prompts > 0)

    def commit_received(self, sequence: Sequence) -> None:
        """Start decoding a receiving sequence: every position but that of its last token has its KV."""
        self._receiving.remove(sequence)
        sequence.num_computed = len(sequence.token_ids) - 1
        self.progress.store_full_blocks(sequence, sequence.num_computed)
        self._run(sequence)

    def fall_back(self, sequence: Sequence, num_received_tokens: int = 0) -> None:
        """Compute a receiving sequence here, from its cached prefix on, or after what has arrived and is right."""
        self._receiving.remove(sequence)
        num_received_tokens = min(num_received_tokens, len(sequence.token_ids) - 1)
        sequence.num_computed = max(sequence.num_computed, num_received_tokens)
        self.progress.store_full_blocks(sequence, sequence.num_computed)
        self._run(sequence)

    def finish(self, sequence: Sequence) -> None:
        """Take a sequence out, wherever it is, and release its blocks."""
        if sequence.phase is Phase.FINISHED:
            return
        queues = {Phase.WAITING: self._waiting, Phase.RUNNING: self._running, Phase.RECEIVING: self._receiving}
        queues[sequence.phase].remove(sequence)
        self._has_same_batch = False
        self.offload.drop(sequence)
        self._release(sequence)
        sequence.phase = Phase.FINISHED

    def invalidate_cache(self, sequence: Sequence) -> None:
        """Take the sequence's blocks out of every cache: what they hold may be what spoiled its logits."""
        self.pool.forget(sequence.block_table)
        self.offload.forget(sequence.hashes)

    def check_integrity(self) -> None:
        """Prove the pool's invariants against the block tables of all sequences.

        Raises:
            AssertionError: If a block is lost or doubled.
        """
        self.pool.check_integrity(sequence.block_table for sequence in (*self._running, *self._receiving))

    def _prompt_seconds(self, sequence: Sequence) -> float:
        cost = self._pace.cost
        return cost.prompt_seconds(0, len(sequence.token_ids)) if cost else 0.0

    def _max_tokens(self, step: Step, prompts: Seq[Sequence]) -> int:
        """Return the positions that the pass may compute, beside sequences that take a token each already."""
        target_seconds = self._limits.target_tpot_seconds
        cost = self._pace.cost if target_seconds and step.spans and (prompts or self._waiting) else None
        if cost is None:
            return self._limits.max_step_tokens
        context_tokens = max((each.num_computed for each in prompts), default=0)
        affordable = cost.affordable_tokens(step.work, target_seconds, context_tokens)
        return int(min(self._limits.max_step_tokens, step.num_tokens + affordable))

    def _may_repeat(self) -> bool:
        """Return whether the next pass is the last one, one position further: nobody came, went or is complete."""
        is_closed = not self._waiting or not self._has_place()
        return self._has_same_batch and is_closed and self._last.may_repeat(len(self._running))

    def _add_decoding(self, step: Step) -> list[Sequence]:
        """Add the next position of every decoding sequence whose output may still grow; return the others."""
        prompts, room = list[Sequence](), self._limits.max_step_tokens
        for sequence in self._running:
            num_ahead = sequence.num_ahead
            if len(sequence.token_ids) + num_ahead - sequence.num_computed > 1:
                prompts.append(sequence)
            elif step.num_tokens < room and (not num_ahead or sequence.num_outputs_left > 0):
                step.add_decoding(sequence)
        return prompts

    def _add_prompts(self, step: Step, prompts: Seq[Sequence]) -> None:
        """Add to the pass what it computes of running sequences' prompts."""
        room = step.max_tokens - step.num_tokens
        if self._has_newcomer():
            room -= room // 2  # whoever comes computes something at once
        claims = [Claim(each.num_chunk_tokens, each.num_pending, each.request.priority) for each in prompts]
        granted = share(claims, room, max_prompts=self._limits.max_step_prompts)
        for sequence, num_tokens in zip(prompts, granted, strict=True):
            if num_tokens:
                step.add(sequence, num_tokens)

    def _has_newcomer(self) -> bool:
        """Return whether a sequence is there that is likely to get its blocks now."""
        if not self._has_place():
            return False
        newcomer = next((sequence for sequence in self._waiting if not sequence.is_held_up), None)
        return newcomer is not None and self._has_blocks(newcomer, [])

    def _admit(self, step: Step) -> None:
        """Give blocks to waiting sequences, in order of turns, as far as they go, and add them to the pass.

        One that waits for what another computes lets those behind it pass; so does one for which there are too few
        blocks, until they have taken together as many as it needs. One whose output has no room holds up all but those
        that have begun, who make room.
        """
        underway, blocked, has_room = self._underway(step), None, True
        for sequence in self._waiting[:MAX_CANDIDATES]:
            if not self._has_place() or (blocked and not self.pool.num_available):
                break
            if (blocked and not self._may_overtake(sequence, blocked)) or not (has_room or sequence.is_admitted):
                continue
            beginning = underway.reusable_prefix(sequence) if not sequence.num_ahead else None
            if beginning is None or (beginning.must_join and self._is_full(step)):
                continue
            if not self._has_blocks(sequence, beginning.blocks) or self._fills_first(step, sequence, beginning):
                blocked = blocked or sequence
                continue
            if self._must_see_proof(step, sequence, beginning):
                continue
            if not sequence.request.may_begin():
                has_room = False
                continue
            if blocked:
                blocked.num_overtaken_blocks += self._num_blocks(sequence)
            self._enter(sequence, beginning)
            if beginning.restored:
                step.restored.append(SwapIn(sequence, sequence.block_table, len(beginning.blocks), beginning.restored))
            self._join(step, sequence, beginning)
            if sequence.phase is Phase.RUNNING:
                self._note(underway, sequence, step)

    def _fills_first(self, step: Step, sequence: Sequence, beginning: ReusablePrefix) -> bool:
        """Return whether a sequence waits while part of it is restored, because others are computed meanwhile."""
        is_held_up = bool(self._running) and bool(beginning.restored)
        return is_held_up and fill_first(self.pool, self.offload, step, sequence, beginning)

    def _must_see_proof(self, step: Step, sequence: Sequence, beginning: ReusablePrefix) -> bool:
        """Return whether a sequence waits until blocks that it finds are known to be filled.

        Who is computed in the pass need not: it falls with the one that fills them. Others would keep what is wrong, or
        have handed it out.
        """
        if beginning.leader is not None:
            return False
        is_kept = sequence.purpose is Purpose.RECEIVE or sequence.request.export or self._is_full(step)
        return bool(is_kept) and step.may_break(sequence.hashes[: len(beginning.blocks)])

    def _join(self, step: Step, sequence: Sequence, beginning: ReusablePrefix) -> None:
        """Add a sequence that has got its blocks to the pass."""
        step.admitted.append(sequence)
        if beginning.leader is not None:
            step.add_duplicate(sequence, beginning.leader, self.pool.block_tokens)
        elif sequence.phase is Phase.RUNNING:
            num_tokens = self._room(sequence, step)
            if num_tokens:
                step.add(sequence, num_tokens)

    def _has_place(self) -> bool:
        num_places = 1 if self.is_sparing else self._limits.max_batch_size
        return len(self._running) + len(self._receiving) < num_places

    def _num_blocks(self, sequence: Sequence) -> int:
        return self.pool.num_blocks_for(len(sequence.token_ids))

    def _may_overtake(self, sequence: Sequence, blocked: Sequence) -> bool:
        """Return whether a sequence may take blocks before one that needs more than there are."""
        return blocked.num_overtaken_blocks + self._num_blocks(sequence) <= self._num_blocks(blocked)

    def _underway(self, step: Step) -> InFlightPrefixes:
        """Return what the running sequences compute, in this pass and after it."""
        underway = InFlightPrefixes(self.pool, self.offload, self._pace)
        for sequence in self._running:
            self._note(underway, sequence, step)
        return underway

    def _note(self, underway: InFlightPrefixes, sequence: Sequence, step: Step) -> None:
        if self._limits.shares_prompts and sequence.is_shareable and sequence.is_prefilling:
            underway.note(sequence, end=step.end_of(sequence))

    def _is_full(self, step: Step) -> bool:
        limits = self._limits
        has_all_prompts = 0 < limits.max_step_prompts <= step.num_prompts
        return step.num_tokens >= step.max_tokens or has_all_prompts

    def _room(self, sequence: Sequence, step: Step) -> int:
        """Return how many positions of a sequence that gets its blocks the pass computes."""
        room = step.max_tokens - step.num_tokens
        if self._is_full(step) and sequence.is_prefilling:
            return 0
        num_tokens = sequence.num_chunk_tokens
        if num_tokens > room and self._waiting:
            room -= room // 2  # who stands behind a long prompt computes something at once, too
        return min(num_tokens, room)

    def _has_blocks(self, sequence: Sequence, found: list[BlockId]) -> bool:
        """Return whether a sequence that finds some blocks gets the others.

        One block stays for each sequence that generates: who comes in on the last block would be put out by the next
        token of another.
        """
        num_missing = self._num_blocks(sequence) - len(found)
        num_kept = sum(1 for each in self._running if each.purpose is Purpose.GENERATE)
        return num_missing + num_kept <= self.pool.num_available_beside(found)

    def _enter(self, sequence: Sequence, beginning: ReusablePrefix) -> None:
        """Take a sequence from the queue, with its blocks."""
        self._waiting.remove(sequence)
        self.pool.acquire(beginning.blocks)
        num_missing = self._num_blocks(sequence) - len(beginning.blocks)
        sequence.block_table = beginning.blocks + self.pool.allocate(num_missing)
        sequence.num_stored_blocks = len(beginning.blocks)
        num_tokens = (len(beginning.blocks) + len(beginning.restored)) * self.pool.block_tokens
        sequence.num_computed = len(sequence.token_ids) if beginning.leader is not None else num_tokens
        self.offload.drop(sequence)
        if not sequence.is_admitted:
            num_cached_blocks = beginning.num_cached_blocks + len(beginning.restored)
            sequence.num_cached = num_cached_blocks * self.pool.block_tokens
            self.offload.note_admitted(sequence, beginning.num_cached_blocks, len(beginning.restored))
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
        self._has_same_batch = False
        insort(self._running, sequence, key=_turn)

    def _reserve_blocks(self) -> None:
        """Make sure of blocks for all tokens of running sequences, in order of turns; the last ones give up theirs."""
        block_tokens = self.pool.block_tokens
        for sequence in tuple(self._running):
            num_tokens, num_ahead = len(sequence.token_ids), sequence.num_ahead
            if num_tokens + num_ahead <= len(sequence.block_table) * block_tokens:
                continue
            if sequence.phase is not Phase.RUNNING or (num_ahead and sequence.num_outputs_left <= 0):
                continue
            num_missing = self.pool.num_blocks_for(num_tokens + num_ahead) - len(sequence.block_table)
            while sequence.phase is Phase.RUNNING and num_missing > self.pool.num_available:
                self._preempt(self._running[-1])
            if sequence.phase is Phase.RUNNING:
                sequence.block_table += self.pool.allocate(num_missing)

    def _preempt(self, sequence: Sequence) -> None:
        self._has_same_batch = False
        self._running.remove(sequence)
        self.offload.keep(sequence, self._pace.cost)
        self._release(sequence)
        sequence.num_preemptions += 1
        sequence.phase = Phase.WAITING
        insort(self._waiting, sequence, key=_turn)

    def _release(self, sequence: Sequence) -> None:
        self.pool.release(sequence.block_table)
        sequence.block_table = []
        sequence.num_computed = sequence.num_stored_blocks = 0
        sequence.is_rounded = False
