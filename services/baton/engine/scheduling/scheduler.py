"""The scheduler: which positions of which sequences the next pass computes.

Continuous batching with chunked prefill. Running sequences come first and take one token each, so that their pace
holds; what is left of the token budget is shared by prompts, several in one pass, and what they have in common is
computed once (`engine/scheduling/admission.py`). When blocks run out, the sequence whose turn is last gives its blocks
back and is computed again later: its output stays, and only comes later.

A sequence's turn is fixed when it comes: that moment, later by `LEVEL_SECONDS` per level of its priority, or before
those that its router placed later. A level counts as that much waiting; a prompt that came later than that overtakes
none, so none waits for ever. And how long a prompt waits is known when it comes: what comes later gets about a tenth
of the passes before it. That is among the requests of one tenant; tenants take turns by their weights
(`engine/scheduling/turns.py`).

A node tells of each prompt how long its own computation took, a part of each pass (`attribute`); the rest of the time
until its first token it waited. So estimates of computing and of waiting can be compared with outcomes apart from each
other, whatever shared a pass.
"""

from __future__ import annotations

import math
from collections.abc import Sequence as Seq
from itertools import chain, takewhile

from baton.engine.kv_cache.disk_tier import DiskTier
from baton.engine.kv_cache.offload import Offload, SwapOut
from baton.engine.kv_cache.state_slots import StateSlots
from baton.engine.request import EngineRequest, Purpose
from baton.engine.runners.base import BlockKv
from baton.engine.scheduling.admission import BatchAdmission, SchedulerLimits, short_tokens
from baton.engine.scheduling.shares import PromptDemand, reachable_target, share_tokens
from baton.engine.scheduling.step import SequenceProgress, Step, StepBudget
from baton.engine.scheduling.turns import TenantTurns
from baton.engine.sequence import MAX_CANDIDATES, Phase, QueueKey, Sequence, SequenceQueues
from baton.engine.step_cost import StepCost, StepCostModel, StepWork
from baton.errors import OutOfMemoryError
from baton.kv.pool import BlockPool, HostBlockStore


class Scheduler:
    """Owns the queues and the block pool.

    Invariants: a waiting sequence has no blocks; a running or receiving one has blocks for all of [0, num_computed).

    `num_state_slots` are for models whose layers keep states; 0: none does.
    """

    def __init__(
        self,
        pool: BlockPool,
        limits: SchedulerLimits,
        *,
        block_bytes: int = 0,
        disk: DiskTier | None = None,
        num_state_slots: int = 0,
    ) -> None:
        self.pool = pool
        self.states = StateSlots(num_state_slots, pool.block_tokens)
        self._costs = StepCostModel(limits.reading_seconds, limits.max_step_tokens)
        store = HostBlockStore[BlockKv](limits.max_host_bytes, block_bytes)
        self.offload = Offload(store, self._costs, block_bytes=block_bytes, block_tokens=pool.block_tokens, disk=disk)
        pool.on_evict = self.offload.note_evicted
        self.progress = SequenceProgress(pool)
        self._limits = limits
        self._queues = SequenceQueues()
        self._turns = TenantTurns(self._queues)
        self.admission = BatchAdmission(pool, self.states, self.offload, limits, self._queues, self._turns)
        self._before = self._last = Step()
        self._num_changes = -1  # of the batch when `_last` was planned
        self._num_arrived = 0
        self.uncopied = list[SwapOut]()  # of blocks that were given away beside a pass
        self._suspects = list[Sequence]()
        self._num_shared = 0
        """Passes since the last one that was a suspect's alone."""

    @property
    def has_suspects(self) -> bool:
        """Return whether a sequence is to be computed alone: passes must not overlap then."""
        return bool(self._suspects)

    @property
    def waiting(self) -> Seq[Sequence]:
        """Return the sequences without blocks, in order of turns."""
        return self._queues.waiting

    @property
    def running(self) -> Seq[Sequence]:
        """Return the sequences that are computed, in order of turns."""
        return self._queues.running

    @property
    def receiving(self) -> Seq[Sequence]:
        """Return the sequences whose KV arrives from another node."""
        return self._queues.receiving

    def add(self, sequence: Sequence, now: float = 0.0) -> None:
        """Queue a sequence; raise OutOfMemoryError if it could not finish even alone."""
        num_tokens = sequence.num_prompt_tokens + sequence.max_output_tokens - 1  # the last one's KV is never needed
        num_blocks = self.pool.num_blocks_for(num_tokens)
        if num_blocks > self.pool.num_blocks:
            raise OutOfMemoryError(
                f"{num_tokens} positions need {num_blocks} KV blocks of {self.pool.block_tokens} tokens; "
                f"the node has {self.pool.num_blocks}"
            )
        self._num_arrived += 1
        sequence.queue_key = QueueKey(self._queues.turn_seconds(sequence, now), self._num_arrived)
        if sequence.suspect_end:
            self._suspects.append(sequence)
        self._queues.has_tenants = self._queues.has_tenants or sequence.request.tenant != ""
        if self._queues.has_tenants:
            self._turns.arrive(sequence)
        if not self.states:  # whose checkpoints lie further apart
            self.admission.find(sequence)
        self._queues.add(sequence)

    def may_wait(self, request: EngineRequest, max_waiting: int) -> bool:
        """Return whether a request may wait beside others; where too many do, if its tenant has less than its share."""
        return len(self.waiting) < max_waiting or self._turns.has_share_of(request, max_waiting)

    def schedule(self) -> Step:
        """Return the next pass, without spans if nothing can be computed; may preempt sequences whose turn is last.

        Decoding sequences come first: each needs one position, and their clients are reading along. Then prompts, by
        turns: of who has blocks, of who gets them here and was to come before, and of all others that get theirs here.
        """
        self.offload.forget_evicted()  # blocks that were taken for anything but a plan are overwritten by now
        num_waiting = len(self.waiting)
        self._reserve_blocks()
        is_short = len(self.waiting) > num_waiting
        if self._may_repeat():
            self._before, self._last = self._last, self._last.again()
            self._last.swaps.outs = self.swap_outs()
            return self._last
        self._before, self._last = self._last, Step.after(self._last)
        step, may_be_alone = self._last, bool(self._suspects) and not _is_in_flight(self._before)
        self._num_changes = self._queues.num_changes
        is_due = may_be_alone and self._num_shared >= self._turns.passes_between(self._suspects)
        self._num_shared += 1
        if not (is_due and self._add_suspect(step)):
            prompts = self._add_decoding(step)
            budget = self._budget(step, prompts)
            if prompts and not is_short:
                self._admit_in_turn(step, prompts, budget)
            if prompts:
                self._add_prompts(step, prompts, budget)
            if self.waiting and not (is_short and step.spans):  # who was preempted here would be back for a pass or two
                self.admission.admit(step, budget)
            if may_be_alone and not step.members:
                self._add_suspect(step)
        step.swaps.outs = self.swap_outs()
        return step

    def admit_receiving(self) -> list[Sequence]:
        """Return who got blocks beside what is in flight: sequences that only receive, which no pass need wait for.

        What their blocks hold is to be copied out before anything is written there, see `take_uncopied`.
        """
        step = Step.after(self._before, self._last)
        self.offload.forget_evicted()
        self.admission.admit_receiving(step)
        self.uncopied += self.offload.drain()
        return step.admitted

    def take_uncopied(self) -> list[SwapOut]:
        """Return, once, what is to be copied out of blocks that sequences have got beside a pass."""
        uncopied, self.uncopied = self.uncopied, []
        return uncopied

    def swap_outs(self) -> list[SwapOut]:
        """Return, once, the blocks to copy to host memory: evicted since the last call, or next to be evicted."""
        return self.take_uncopied() + self.offload.drain(self.pool)

    def undo(self, step: Step) -> None:
        """Take back a pass that was in flight when one failed: its sequences that still run are computed again."""
        self._before = self._last = Step()
        self.progress.take_back(step)
        self.states.forget(step.members)
        self.offload.forget([*step.cache.filled, *step.cache.stored])
        for sequence in reversed(step.members):
            if sequence.phase is Phase.RUNNING:
                self._preempt(sequence)

    def isolate(self, step: Step) -> None:
        """Take back a pass that has failed: each of its sequences is computed alone until it is beyond that pass."""
        spans = dict(zip(step.sequences, step.spans, strict=True))
        for sequence in step.members:
            if sequence.phase is not Phase.FINISHED:
                span = spans.get(sequence)
                sequence.suspect_end = span.start + len(span.token_ids) + step.num_passes - 1 if span else 1
                self._suspects.append(sequence)
        self.undo(step)

    def note_pass(self, step: Step, seconds: float, *, is_late: bool = False) -> None:
        """Take in what a pass took, from when the device could begin it until its tokens were there, or were seen."""
        for sequence in step.sequences if step.is_alone else ():
            if sequence.num_computed >= sequence.suspect_end:
                sequence.suspect_end = 0
        if step.spans:
            self._costs.note(step.work, seconds, has_prompts=step.num_prompts > 0, is_late=is_late)
            if seconds > 0.0:
                self.offload.note_pass(seconds)
        if step.has_unanswered and (cost := self._costs.cost):
            attribute(step, seconds, cost, self._limits.max_step_tokens)

    def longest_seconds(self, step: Step) -> float:
        """Return the time after which a pass is taken for hung; infinity: it cannot be told yet."""
        return self._costs.longest_seconds(step.work, has_prompts=step.num_prompts > 0) if step.spans else math.inf

    def expected_seconds(self, step: Step, *, at_least: bool = False) -> float:
        """Return what a pass will take, or at least; 0: it cannot be told yet."""
        work, has_prompts = step.work, step.num_prompts > 0
        return self._costs.expected_seconds(work, has_prompts=has_prompts, at_least=at_least) if step.spans else 0.0

    def commit_received(self, sequence: Sequence) -> None:
        """Start decoding a receiving sequence: every position but that of its last token has its KV."""
        self._end_receiving(sequence, len(sequence.token_ids) - 1)

    def fall_back(self, sequence: Sequence, num_received_tokens: int = 0) -> None:
        """Compute a receiving sequence here, from its cached prefix on, or after what has arrived and is right.

        A state that has arrived stands for all positions of the prompt, and is of use after these alone.
        """
        num_right = min(num_received_tokens, len(sequence.token_ids) - 1)
        if sequence.state is not None and num_received_tokens != len(sequence.token_ids) - 1:
            num_right = 0
        self._end_receiving(sequence, max(sequence.num_computed, num_right))

    def _end_receiving(self, sequence: Sequence, num_computed: int) -> None:
        if sequence.state is not None and num_computed == len(sequence.token_ids) - 1:
            self.states.received(sequence)
        sequence.num_computed = sequence.stats.computed_from = num_computed
        self.progress.store_full_blocks(sequence, num_computed)
        sequence.purpose = Purpose.GENERATE
        self._queues.move(sequence, Phase.RUNNING)

    def finish(self, sequence: Sequence) -> None:
        """Take a sequence out, wherever it is, and release its blocks."""
        if sequence.phase is Phase.FINISHED:
            return
        if self._queues.has_tenants:
            self._turns.end(sequence)
        self._queues.move(sequence, Phase.FINISHED)
        self.offload.drop(sequence)
        self._release(sequence)

    def invalidate_cache(self, sequence: Sequence) -> None:
        """Take the sequence's blocks out of every cache: what they hold may be what spoiled its logits."""
        self.pool.forget(sequence.block_table)
        self.offload.forget(sequence.hashes)
        self.states.forget([sequence])

    def check_integrity(self) -> None:
        """Prove the invariants of pool and offload against all sequences; raise AssertionError if a block is lost."""
        living = (*self.running, *self.receiving)
        self.pool.check_integrity(sequence.block_table for sequence in living)
        self.states.pool.check_integrity(map(self.states.slots_of, living))
        self.offload.check_integrity(self.waiting)

    def _budget(self, step: Step, prompts: Seq[Sequence]) -> StepBudget:
        """Return what the pass may hold, beside sequences that take a token each already."""
        max_tokens, target_seconds = self._limits.max_step_tokens, self._limits.target_tpot_seconds
        num_prompts = len(prompts) + len(self.waiting)
        cost = self._costs.cost if num_prompts > 1 or (num_prompts and target_seconds and step.spans) else None
        if cost is None:
            return StepBudget(max_tokens)
        fixed_seconds = cost.seconds(step.work)
        if target_seconds and step.spans:
            context_tokens = max((each.num_computed for each in prompts), default=0)
            target_seconds = reachable_target(target_seconds, fixed_seconds, num_prompts, len(step.sequences))
            affordable = cost.affordable_tokens(step.work, target_seconds, context_tokens)
            max_tokens = int(min(max_tokens, step.num_tokens + affordable))
        waiting = (each for each in self.waiting[:MAX_CANDIDATES] if each.purpose is not Purpose.RECEIVE)
        num_lacking = sum(map(self.admission.num_lacking, chain(prompts, waiting)))
        filled_tokens = min(max_tokens, step.num_tokens + num_lacking)
        return StepBudget(max_tokens, filled_tokens, num_prompts, *cost.tokens_beside(step.work))

    def _may_repeat(self) -> bool:
        """Return whether the next pass is the last one, one position further: nobody came, went or is complete."""
        is_same_batch = self._num_changes == self._queues.num_changes
        is_closed = not self.waiting or self.admission.num_free_slots <= 0
        return is_same_batch and is_closed and not self._suspects and self._last.may_repeat(len(self.running))

    def _add_decoding(self, step: Step) -> list[Sequence]:
        """Add the next position of every decoding sequence whose output may still grow; return the others."""
        prompts, room = list[Sequence](), self._limits.max_step_tokens
        for sequence in [each for each in self.running if not each.suspect_end] if self._suspects else self.running:
            num_ahead = sequence.num_ahead
            if len(sequence.token_ids) + num_ahead - sequence.num_computed > 1:
                prompts.append(sequence)
            elif step.num_tokens < room and (not num_ahead or sequence.num_outputs_left > 0):
                step.add_decoding(sequence)
        return prompts

    def _add_suspect(self, step: Step) -> bool:
        """Add to an empty pass what it computes of a suspected sequence; return whether there is one with blocks."""
        self._suspects = [each for each in self._suspects if each.suspect_end and each.phase is not Phase.FINISHED]
        suspects = [each for each in self._suspects if each.phase is not Phase.RECEIVING]
        suspects.sort(key=lambda each: (each.phase is Phase.WAITING, each.queue_key))
        for sequence in self._turns.sorted(suspects) if self._queues.has_tenants else suspects:
            if sequence.phase is Phase.RUNNING:
                num_tokens = min(sequence.num_chunk_tokens, self._limits.max_step_tokens)
                if self._queues.has_tenants:
                    self._turns.charge(sequence, num_tokens)
                step.add(sequence, num_tokens)
            else:
                self.admission.admit(step, StepBudget(self._limits.max_step_tokens), (sequence,))
            if step.members:
                step.is_alone, self._num_shared = True, 0
                if self._queues.has_tenants and sequence.request.is_suspect:  # others were beside one that failed
                    self._turns.charge_others(sequence)
                break
        return step.is_alone

    def _admit_in_turn(self, step: Step, prompts: Seq[Sequence], budget: StepBudget) -> None:
        """Admit who waits and has its turn before all of these prompts, because its call came late; of one tenant."""
        before = takewhile(lambda each: each.queue_key < prompts[0].queue_key, self.waiting[:MAX_CANDIDATES])
        in_turn = [each for each in before if not each.suspect_end]
        if in_turn and self.admission.num_free_slots > 0:
            tenants = {each.request.tenant for each in prompts} | self._queues.waiting_of.keys()
            if len(tenants) == 1:
                self.admission.admit(step, budget, in_turn)

    def _add_prompts(self, step: Step, prompts: Seq[Sequence], budget: StepBudget) -> None:
        """Add to the pass what it computes of running sequences' prompts."""
        room = budget.room(step)
        room -= self.admission.newcomer_tokens(step, short_tokens(room), prompts)
        prompts = self._turns.sorted(prompts) if self._queues.has_tenants else prompts
        if len(prompts) == 1:
            granted = [min(prompts[0].num_chunk_tokens, room)]
        else:
            demands = [PromptDemand(each.num_chunk_tokens, each.num_pending, each.request.priority) for each in prompts]

            def room_behind(num_dealt: int, num_ended: int) -> int:
                return budget.room_behind(step.num_tokens + num_dealt, step.num_ended + num_ended)

            granted = share_tokens(demands, room, room_behind)
        for sequence, num_tokens in zip(prompts, granted, strict=True):
            if num_tokens:
                if self._queues.has_tenants:
                    self._turns.charge(sequence, num_tokens)
                step.add(sequence, num_tokens)

    def _reserve_blocks(self) -> None:
        """Make sure of blocks for all tokens of running sequences, in order of turns; the last ones give up theirs."""
        block_tokens = self.pool.block_tokens
        for sequence in tuple(self.running):
            num_tokens, num_ahead = len(sequence.token_ids), sequence.num_ahead
            if num_tokens + num_ahead <= len(sequence.block_table) * block_tokens:
                continue
            if sequence.phase is not Phase.RUNNING or (num_ahead and sequence.num_outputs_left <= 0):
                continue
            num_missing = self.pool.num_blocks_for(num_tokens + num_ahead) - len(sequence.block_table)
            while sequence.phase is Phase.RUNNING and num_missing > self.pool.num_available:
                self._preempt(self.running[-1])
            if sequence.phase is Phase.RUNNING:
                sequence.block_table += self.pool.allocate(num_missing)

    def _preempt(self, sequence: Sequence) -> None:
        self._queues.move(sequence, Phase.WAITING)
        self.offload.keep(sequence)
        self._release(sequence)
        sequence.stats.num_preemptions += 1

    def _release(self, sequence: Sequence) -> None:
        self.pool.release(sequence.block_table)
        self.states.release(sequence)
        sequence.block_table = []
        sequence.num_computed = sequence.num_stored_blocks = 0
        sequence.is_rounded = False


def _is_in_flight(step: Step) -> bool:
    """Return whether the device may still be at a pass, or at the last of several: some of its tokens are not here."""
    is_awaited = any(each.num_ahead and each.phase is not Phase.FINISHED for each in step.sequences)
    return is_awaited or (bool(step.spans) and not step.num_collected)


def attribute(step: Step, seconds: float, cost: StepCost, max_tokens: int) -> None:
    """Enter the time of a pass into the sequences that it brings nearer to their first token.

    Together, a prompt's parts are what it would take as the only one, in passes of `max_tokens` positions, or of its
    chunks, by what passes cost: the rest of the time it waits. So they do not depend on which prompts are beside it;
    decoding sequences add to what each takes. Parts of a pass may be more than the pass: each of two short prompts
    bears what passes take anyway. A prompt that is computed again, after its first token, has a part that is entered
    nowhere; a sequence that takes over what another one computes has none.
    """
    parts, all_tokens, all_pairs = list[tuple[Sequence, float]](), 0, 0.0
    for sequence, span in zip(step.sequences, step.spans, strict=True):
        num_tokens, stats = len(span.token_ids), sequence.stats
        if stats.first_token > 0.0 and num_tokens == 1:
            continue
        all_tokens, all_pairs = all_tokens + num_tokens, all_pairs + StepWork.of_span(span.start, span.end).num_pairs
        if stats.first_token == 0.0:
            limit = min(max_tokens, sequence.max_chunk_tokens or max_tokens)
            until, before = (cost.alone_seconds(stats.computed_from, end, limit) for end in (span.end, span.start))
            parts.append((sequence, until - before))
    whole_seconds = cost.seconds(StepWork(all_tokens, all_pairs))
    for sequence, part_seconds in parts:
        sequence.stats.computed_seconds += seconds * part_seconds / whole_seconds
