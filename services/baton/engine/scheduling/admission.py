"""Admission: which waiting sequences get blocks, and what the pass being planned adds of them."""

from __future__ import annotations

import math
from collections.abc import Iterable
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from itertools import islice

from baton.capacity.cost import SHORT_SHARE, overtaking
from baton.engine.kv_cache.offload import Offload, SwapIn
from baton.engine.kv_cache.state_slots import StateSlots
from baton.engine.request import Purpose
from baton.engine.scheduling.in_flight import InFlightPrefixes, ReusablePrefix
from baton.engine.scheduling.step import Step, StepBudget
from baton.engine.scheduling.turns import TenantTurns
from baton.engine.sequence import Phase, Sequence, SequenceQueues, first_candidates
from baton.kv.pool import BlockId, BlockPool


@dataclass(frozen=True, slots=True)
class SchedulerLimits:
    """Bounds of a batch: what an operator sets, and what a node was measured at before it began to serve.

    How long KV is moved between two passes has no bound here: `engine/kv_cache/ingest.py` weighs it.
    """

    max_batch_size: int = 64
    """Sequences that hold blocks at once."""
    max_step_tokens: int = 512
    """Positions computed in one pass; longer prompts are computed in chunks."""
    shares_prompts: bool = True
    """Whether equal beginnings of prompts that are there at the same time are computed once."""
    max_host_bytes: int = 0
    """Host memory for what blocks hold that leave the device; 0: it is computed again."""
    target_tpot_seconds: float = 0.0
    """What a pass takes at most in which sequences generate, as far as the share of prompts in it decides; 0: any."""
    reading_seconds: float = 0.0
    """Time of reading the weights, by the node's profile: no pass takes less."""
    computes_for_others: bool = False
    """Whether other nodes wait for KV from here: receptions leave them half of slots and blocks, or both might wait."""


class BatchAdmission:
    """Lets waiting sequences into the batch.

    Attributes:
        is_sparing: Whether sequences are computed one after the other, for memory is short.
    """

    def __init__(
        self,
        pool: BlockPool,
        states: StateSlots,
        offload: Offload,
        limits: SchedulerLimits,
        queues: SequenceQueues,
        turns: TenantTurns,
    ) -> None:
        self.is_sparing = False
        self._has_export_room = True  # the last time that somebody asked, once a pass
        self._pool, self._states = pool, states
        self._offload, self._limits = offload, limits
        self._queues, self._turns = queues, turns

    @property
    def num_free_slots(self) -> int:
        """Return how many more sequences the batch has room for; below 0 where it has more than it should."""
        return self._num_slots - len(self._queues.running) - len(self._queues.receiving)

    @property
    def _num_slots(self) -> int:
        return 1 if self.is_sparing else self._limits.max_batch_size

    def _candidates(self) -> Iterable[Sequence]:
        """Return who waits, in order of turns; without tenants that is the order of queue keys."""
        return first_candidates(self._turns.waiting() if self._queues.has_tenants else self._queues.waiting[:])

    def newcomer_tokens(self, step: Step, limit: int, before: Seq[Sequence]) -> int:
        """Keep positions of a pass for sequences that are likely to get their blocks now; return how many, to a limit.

        They are through sooner by it than after the prompts `before` them, 1 or more in order of queue keys; of these
        who is through sooner by it has it first. Or it is their turn, by priority or among tenants. What the prefix
        cache has of them, and what another node computes, is no part of it.
        """
        pending, tenants = [each.num_pending for each in before], {each.request.tenant for each in before}
        sooner = overtaking(pending)
        num_before, num_taken = sum(pending), sum(pending[index] for index in sooner)
        num_shared = sum(before[index].num_chunk_tokens for index in sooner)
        num_slots, num_tokens = self.num_free_slots, 0
        for sequence in self._candidates():
            if num_slots <= 0 or num_tokens >= limit:
                break
            is_export = sequence.purpose is Purpose.PREFILL and not sequence.is_admitted
            if sequence.is_held_up or sequence.suspect_end or (is_export and not self._has_export_room):
                continue
            found = self.find(sequence)
            if not self._has_blocks(sequence, found):
                break
            if sequence.purpose is not Purpose.RECEIVE:
                num_lacking = self.num_lacking(sequence)
                num_before += num_lacking
                is_in_turn = sequence.queue_key < before[-1].queue_key or sequence.request.tenant not in tenants
                if is_in_turn or num_taken + num_lacking < SHORT_SHARE * num_before:
                    room = max(0, limit - num_tokens - (0 if is_in_turn else num_shared))
                    step.kept[sequence] = min(sequence.num_chunk_tokens, num_lacking, room)
                    num_tokens += step.kept[sequence]
                    num_taken += num_lacking
            num_slots -= 1
        return num_tokens

    def find(self, sequence: Sequence) -> list[BlockId]:
        """Return the blocks that a waiting sequence would find in the prefix cache; it keeps their number."""
        if not sequence.is_shareable:
            return []
        sequence.extend_hashes(self._pool.block_tokens)
        found = self._pool.match(sequence.hashes)
        sequence.num_matched_blocks = len(found)
        return found

    def num_lacking(self, sequence: Sequence) -> int:
        """Return the positions that a sequence has to compute; of one without blocks by what it last found."""
        if sequence.block_table:
            return sequence.num_pending
        return max(1, sequence.num_pending - sequence.num_matched_blocks * self._pool.block_tokens)

    def admit(self, step: Step, budget: StepBudget, named: Seq[Sequence] = ()) -> None:
        """Give blocks to waiting sequences, or those named, by turns, as far as they go, and add them to the pass.

        A sequence that awaits what another one computes lets sequences behind it pass; so does one that may not receive
        yet, but for others that would, and one for which there are too few blocks, until those behind it have taken
        together as many as it needs. A sequence whose export has no room holds up the prompts for other nodes behind
        it, but for those that have begun: these make room. Who generates here or receives needs no room for exports,
        and passes. Who is suspected has to be named.
        """
        in_flight, blocked, has_room, may_receive = self._in_flight(step), None, True, True
        for sequence in named or self._candidates():
            step.kept.pop(sequence, None)  # whether it gets its blocks or not
            if sequence.suspect_end and sequence not in named:
                if not (blocked or self._has_blocks(sequence, self.find(sequence))):
                    blocked = sequence  # or those behind it would take each block that is given back
                continue
            if self.num_free_slots <= 0 or (blocked and not self._pool.num_available):
                break
            if sequence.purpose is Purpose.RECEIVE and not (may_receive := may_receive and self._may_receive(sequence)):
                continue
            if blocked and blocked.num_overtaken_blocks + self._num_blocks(sequence) > self._num_blocks(blocked):
                continue
            if not has_room and sequence.purpose is Purpose.PREFILL and not sequence.is_admitted:
                continue
            prefix = in_flight.reusable_prefix(sequence) if not sequence.num_ahead else None
            if prefix is None or (prefix.must_join and not budget.room(step)):
                continue
            if not self._has_room(sequence, prefix) or self._fills_first(step, sequence, prefix):
                blocked = blocked or sequence
                continue
            if self._must_see_proof(step, budget, sequence, prefix):
                continue
            if sequence.request.export is not None and not sequence.request.export.may_begin():
                has_room = False
                continue
            if blocked:
                blocked.num_overtaken_blocks += self._num_blocks(sequence)
            self._take_in(sequence, prefix)
            self._join(step, budget, sequence, prefix)
            if sequence.phase is Phase.RUNNING:
                self._note(in_flight, sequence, step)
        self._has_export_room = has_room

    def admit_receiving(self, step: Step) -> None:
        """Give blocks to waiting sequences whose KV comes from elsewhere: no pass computes them.

        Only to such as find what they find on the device, and proven; the others wait until the next pass is planned.
        So do those that are computed here; who passes them leaves them their slots and blocks, or else stays behind.
        """
        in_flight, num_left, may_receive = None, 0, True
        for sequence in islice(self._candidates(), max(0, self.num_free_slots)):
            prefix = None
            if sequence.purpose is Purpose.RECEIVE and not (may_receive := may_receive and self._may_receive(sequence)):
                continue
            if sequence.purpose is Purpose.RECEIVE and not sequence.num_ahead:
                if not self._has_blocks(sequence, self.find(sequence), num_left):
                    return
                in_flight = in_flight or self._in_flight(step)
                prefix = in_flight.reusable_prefix(sequence)
            if prefix and prefix.is_here and not step.may_break(sequence.hashes[: len(prefix.blocks)]):
                if not self._has_room(sequence, prefix, num_left):
                    return
                self._take_in(sequence, prefix)
                step.admitted.append(sequence)
            elif self._states:
                return
            else:
                num_left += self._num_blocks(sequence)

    def can_receive(self, num_tokens: int, beside: Seq[Sequence] = ()) -> bool:
        """Return whether KV of so many positions may be waited for beside others; if not even alone, it is computed."""
        num_blocks = self._pool.num_blocks_for(num_tokens) + sum(len(each.block_table) for each in beside)
        is_half = 2 * (1 + len(beside)) <= self._num_slots and 2 * num_blocks <= self._pool.num_blocks
        return is_half or not self._limits.computes_for_others

    def _may_receive(self, sequence: Sequence) -> bool:
        beside = self._queues.receiving  # alone any may be: it is told then
        return not beside or self.can_receive(len(sequence.token_ids), beside)

    def _fills_first(self, step: Step, sequence: Sequence, prefix: ReusablePrefix) -> bool:
        """Return whether a sequence is admitted later, because only part of its contents can be copied in by now.

        Long prompts are restored in parts while other sequences are computed, so that decoding ones need not wait for
        all of a prompt. A part goes into the prefix cache, not to the sequence: the sequence goes on waiting, and finds
        the part in the next pass as it would find any cached block. So a part may also serve other sequences, and no
        sequence holds blocks without being computed. A sequence whose last part was evicted is admitted with all at
        once.
        """
        if not self._queues.running or not prefix.restored:
            return False
        room = self._offload.max_pass_blocks() - sum(len(each.contents) for each in step.swaps.ins)
        num_found, restore = len(prefix.blocks), sequence.begin_restore()
        if len(prefix.restored) <= room or (restore.num_filled_blocks and num_found < restore.filled_end):
            return False
        if room > 0:
            hashes = sequence.hashes[num_found : num_found + room]
            self._pool.acquire(prefix.blocks)
            block_ids = self._pool.allocate(room)
            for block_id, block_hash in zip(block_ids, hashes, strict=True):
                self._pool.store(block_id, block_hash)
            self._pool.release([*prefix.blocks, *block_ids])
            step.swaps.ins.append(SwapIn(sequence, block_ids, 0, prefix.restored[:room]))
            step.cache.filled += hashes
            restore.num_filled_blocks += room
            restore.filled_end = num_found + room
        return True

    def _must_see_proof(self, step: Step, budget: StepBudget, sequence: Sequence, prefix: ReusablePrefix) -> bool:
        """Return whether a sequence waits until the blocks that it finds are known to be filled.

        A sequence that is computed in the pass need not wait: if the blocks are not filled, the pass has failed, and
        the sequence with it. Any other would keep wrong KV, or would have handed it out.
        """
        if prefix.leader is not None:
            return False
        is_kept = sequence.purpose is Purpose.RECEIVE or sequence.request.export or not budget.room(step)
        return bool(is_kept) and step.may_break(sequence.hashes[: len(prefix.blocks)])

    def _take_in(self, sequence: Sequence, prefix: ReusablePrefix) -> None:
        """Move a sequence into the batch, with its blocks."""
        block_tokens, num_found = self._pool.block_tokens, len(prefix.blocks)
        self._pool.acquire(prefix.blocks)
        sequence.block_table = prefix.blocks + self._pool.allocate(self._num_blocks(sequence) - num_found)
        sequence.num_stored_blocks = num_found
        num_tokens = (num_found + len(prefix.restored)) * block_tokens
        sequence.num_computed = len(sequence.token_ids) if prefix.leader is not None else num_tokens
        self._states.take(sequence, len(prefix.blocks) + len(prefix.restored))
        self._offload.drop(sequence)
        sequence.stats.computed_from = sequence.num_computed
        if not sequence.is_admitted:
            if self._queues.has_tenants:
                self._turns.begin(sequence)
            sequence.is_admitted = True
            sequence.stats.num_cached = (prefix.num_cached_blocks + len(prefix.restored)) * block_tokens
            sequence.stats.num_shared = sequence.num_computed - sequence.stats.num_cached
            self._offload.note_admitted(sequence, prefix.num_cached_blocks, len(prefix.restored))
        self._queues.move(sequence, Phase.RECEIVING if sequence.purpose is Purpose.RECEIVE else Phase.RUNNING)

    def _join(self, step: Step, budget: StepBudget, sequence: Sequence, prefix: ReusablePrefix) -> None:
        """Add a sequence that has got its blocks to the pass."""
        step.admitted.append(sequence)
        if prefix.restored:
            step.swaps.ins.append(SwapIn(sequence, sequence.block_table, len(prefix.blocks), prefix.restored))
        if prefix.leader is not None:
            step.add_duplicate(sequence, prefix.leader, self._pool.block_tokens)
        elif sequence.phase is Phase.RUNNING:
            num_tokens = self._num_computed_now(sequence, step, budget)
            if num_tokens:
                if self._queues.has_tenants:
                    self._turns.charge(sequence, num_tokens)
                step.add(sequence, num_tokens)

    def _num_computed_now(self, sequence: Sequence, step: Step, budget: StepBudget) -> int:
        """Return how many positions of a sequence that gets its blocks the pass computes."""
        room = budget.room(step)
        if not room:
            return 0 if sequence.is_prefilling else min(1, budget.max_tokens - step.num_tokens)
        num_tokens = sequence.num_chunk_tokens
        if num_tokens > room and self._queues.waiting and not step.kept:
            room -= self.newcomer_tokens(step, short_tokens(room), (sequence,))
        return min(num_tokens, room)

    def num_wanted_blocks(self, sequence: Sequence) -> int:
        """Return the blocks that a waiting sequence takes; 0 while it awaits what another one computes."""
        return 0 if sequence.is_held_up else self._num_blocks(sequence)

    def _num_blocks(self, sequence: Sequence) -> int:
        return self._pool.num_blocks_for(len(sequence.token_ids))

    def _has_room(self, sequence: Sequence, prefix: ReusablePrefix, num_left: int = 0) -> bool:
        """Return whether a sequence gets the blocks that it does not find, and a slot if it needs one."""
        num_blocks = len(prefix.blocks) + len(prefix.restored)
        return self._states.has_room(sequence, num_blocks) and self._has_blocks(sequence, prefix.blocks, num_left)

    def _has_blocks(self, sequence: Sequence, found: list[BlockId], num_left: int = 0) -> bool:
        """Return whether a sequence that finds some blocks gets the others, so many beside them for those before it.

        One block stays for each sequence that generates: a sequence admitted on the last block would be preempted by
        the next token of another.
        """
        num_missing = self._num_blocks(sequence) - len(found) + num_left
        num_kept = sum(1 for each in self._queues.running if each.purpose is Purpose.GENERATE)
        return num_missing + num_kept <= self._pool.num_available_beside(found)

    def _in_flight(self, step: Step) -> InFlightPrefixes:
        """Return what the running sequences compute, in this pass and after it."""
        in_flight = InFlightPrefixes(self._pool, self._states, self._offload)
        for sequence in self._queues.running:
            self._note(in_flight, sequence, step)
        return in_flight

    def _note(self, in_flight: InFlightPrefixes, sequence: Sequence, step: Step) -> None:
        if self._limits.shares_prompts and not self._states and sequence.is_shareable and sequence.is_prefilling:
            in_flight.note(sequence, end=step.end_of(sequence))


def short_tokens(num_tokens: int) -> int:
    """Return the positions of so many that go to who is through sooner by them: 1 of 2 or more."""
    return math.ceil(SHORT_SHARE * (num_tokens - 1)) if num_tokens else 0
