"""A request inside the engine: its tokens, its blocks, how far it is, and the queues in which it stands."""

from __future__ import annotations

import math
from bisect import insort
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from operator import attrgetter
from typing import Literal, NamedTuple

from baton.capacity.snapshot import seconds_between
from baton.engine.request import EngineRequest, Purpose
from baton.engine.runners.base import StateSave
from baton.engine.sampling import SamplingContext
from baton.kv.hashing import BlockHash, block_hashes, root_hash
from baton.kv.pool import BlockId

FinishReason = Literal["stop", "length"]

SCORED_CHUNK_TOKENS = 128
"""Positions in one pass of a prompt whose log-probabilities are wanted: each brings a row of the vocabulary's size."""
MAX_CANDIDATES = 128
"""Waiting sequences looked at in one pass."""
SUSPECT_TOKENS = 24
"""New tokens of a suspected request that are computed alone: passes that were launched together may have ended it.

A gateway is some tokens behind; a fall within 16 that it has seen counts (`gateway.cluster.quarantine`).
"""


class Phase(Enum):
    """The queue in which a sequence is."""

    WAITING = "waiting"
    RECEIVING = "receiving"
    """Has blocks; another node's KV lands in them."""
    RUNNING = "running"
    FINISHED = "finished"


LEVEL_SECONDS = 5.0
"""Waiting that makes up for one level of priority."""
LATE_SECONDS = 5.0
"""By how much at most a call comes late to be put in the order of placements."""


class QueueKey(NamedTuple):
    """A place in the order of sequences; no two are equal. The lowest comes first, the highest is preempted first."""

    due_seconds: float
    """Moment by which the sequence's turn is reckoned, see `SequenceQueues.turn_seconds`."""
    arrival: int
    """Place in the order in which sequences came; decides between equal moments."""


@dataclass(slots=True)
class SequenceStats:
    """Times and counts that the end of a sequence tells. Times are on the engine's clock, seconds; 0: not yet."""

    submitted: float = 0.0
    """Handed to the engine."""
    started: float = 0.0
    """First computed, or first KV awaited."""
    first_token: float = 0.0
    computed_seconds: float = 0.0
    """Its part of the passes before its first token (`engine/scheduling/scheduler.py`)."""
    num_cached: int = 0
    """Positions of prompt and earlier output found in the prefix cache at first admission."""
    num_shared: int = 0
    """Positions after them whose KV another sequence computed in the pass of first admission."""
    computed_from: int = 0
    """Position from which on its prompt was computed here."""
    join_seconds: float = 0.0
    """From when all of its KV had come until it could join the others."""
    num_preemptions: int = 0
    joined: tuple[int, int] = (0, 0)
    """Tokens that all had got, and its own, prompt included, when it began to decode."""


@dataclass(slots=True)
class PromptScoring:
    """How far the log-probabilities of a prompt are."""

    end: int
    num_scored: int = 0
    """Positions whose logits have become log-probabilities of the prompt's tokens; up to `end`."""


@dataclass(slots=True)
class RestoreState:
    """What is being done, while a sequence waits, so that it gets blocks back instead of computing them."""

    kept_hashes: list[BlockHash] = field(default_factory=list)
    """After a preemption: hashes of leading blocks that are copied to host memory if they must go."""
    is_reading: bool = False
    has_read: bool = False
    """Whether blocks have been asked for from disk, which happens once."""
    num_read_blocks: int = 0
    num_filled_blocks: int = 0
    """Blocks that were copied into the prefix cache for the sequence."""
    filled_end: int = 0
    """Index of the block after the last of these."""


@dataclass(slots=True)
class SequenceState:
    """Slots of what layers keep of a sequence besides K and V (`engine/kv_cache/state_slots.py`)."""

    slot: BlockId
    """Its own."""
    sources: list[BlockId]
    """The checkpoint from which it goes on, until a pass behind the one that reads it is launched; else none."""
    num_matched_blocks: int
    """Blocks that it found in the prefix cache, with a checkpoint at their end or not."""
    has_begun: bool = False
    """Whether a pass has been launched that reads the checkpoint."""
    saves: deque[StateSave] = field(default_factory=deque)
    """Checkpoints that passes leave, not hittable yet."""
    output_hash: BlockHash | None = None
    """Hash of the last checkpoint in its output."""


@dataclass(slots=True, eq=False)
class Sequence:
    """A living request. The scheduler alone changes it.

    Interval table of positions: [0, num_computed) have their KV in blocks, or get it from a pass in flight;
    [num_computed, len(token_ids) + num_ahead) have not. The token at [len(token_ids), len(token_ids) + num_ahead) is
    known to the device alone. A sequence whose last position alone is not computed decodes; a token is sampled whenever
    all are.
    """

    request: EngineRequest
    max_output_tokens: int
    """Output tokens after which the generation ends."""
    end_token_ids: frozenset[int]
    root: BlockHash
    """Where the chain of block hashes starts."""
    token_ids: list[int]
    num_prompt_tokens: int
    purpose: Purpose
    """What to do; RECEIVE turns into GENERATE when the KV has arrived or the other node is given up."""
    phase: Phase = Phase.WAITING
    block_table: list[BlockId] = field(default_factory=list)
    """Blocks, in order of positions."""
    hashes: list[BlockHash] = field(default_factory=list)
    """Hashes of the full blocks of `token_ids`, extended as it grows."""
    num_computed: int = 0
    """Positions whose KV is in blocks, or on its way there."""
    num_ahead: int = 0
    """Tokens that passes in flight choose; 0 where every token is known."""
    last_row: int = 0
    """With `num_ahead`: row of the pass in flight from which the last of them is chosen."""
    num_stored_blocks: int = 0
    """Leading blocks already offered to the prefix cache."""
    is_rounded: bool = False
    """Whether KV was rounded on its way here: then nothing after the cached prefix is shared."""
    queue_key: QueueKey = QueueKey(0.0, 0)
    """Its place in every queue."""
    num_overtaken_blocks: int = 0
    """Blocks taken by sequences behind it while there were too few for it."""
    awaited: BlockHash | None = None
    """While it waits: hash of a block, or of all tokens, that another sequence computes and that it will take over."""
    is_admitted: bool = False
    num_charged_outputs: float = 0.0
    """Output tokens that its tenant was charged with when it got blocks."""
    scoring: PromptScoring | None = None
    """How far the prompt's log-probabilities are; None: they are not wanted."""
    suspect_end: int = 0
    """Until so many of its positions are computed, it has passes of its own: one that others shared has failed; 0: it
    is not suspected."""
    restore: RestoreState | None = None
    """How blocks come back from host memory or disk; None: that has never been tried."""
    state: SequenceState | None = None
    """With blocks, of a model whose layers keep states: where its is."""
    num_matched_blocks: int = 0
    """Blocks that it found when the prefix cache was last asked: when it came, or later."""
    stats: SequenceStats = field(default_factory=SequenceStats)

    @property
    def request_id(self) -> str:
        """Return the request's id."""
        return self.request.request_id

    @property
    def num_output_tokens(self) -> int:
        """Return the output tokens so far, those of earlier attempts included."""
        return len(self.token_ids) - self.num_prompt_tokens

    @property
    def is_shareable(self) -> bool:
        """Return whether other sequences may take over its blocks."""
        return not (self.request.is_cache_bypassed or self.is_rounded)

    @property
    def is_held_up(self) -> bool:
        """Return whether it waits for something besides its turn and its blocks."""
        return self.awaited is not None or (self.restore is not None and self.restore.is_reading)

    @property
    def is_scoring(self) -> bool:
        """Return whether log-probabilities of the prompt are wanted that are not there."""
        return self.scoring is not None and self.scoring.num_scored < self.scoring.end

    @property
    def num_pending(self) -> int:
        """Return the positions that have no KV."""
        return len(self.token_ids) + self.num_ahead - self.num_computed

    @property
    def num_chunk_tokens(self) -> int:
        """Return how many positions of its prompt may be computed in one pass."""
        return min(self.num_pending, self.max_chunk_tokens or self.num_pending)

    @property
    def max_chunk_tokens(self) -> int:
        """Return how many positions of its prompt a pass computes at most, whatever there is room for; 0: any."""
        if self.is_scoring:
            return SCORED_CHUNK_TOKENS
        return self.request.export.chunk_tokens if self.request.export is not None else 0

    @property
    def num_outputs_left(self) -> int:
        """Return the tokens that can still be asked for before the output is as long as it may be."""
        return self.max_output_tokens + self.num_prompt_tokens - len(self.token_ids) - self.num_ahead

    @property
    def is_prefilling(self) -> bool:
        """Return whether more than the last token is still to be computed."""
        return self.num_pending > 1

    @property
    def num_reusable(self) -> int:
        """Return the leading positions that need no computation if their KV exists: their logits are not needed."""
        return self.scoring.num_scored if self.scoring is not None and self.is_scoring else len(self.token_ids) - 1

    @property
    def ends_with_end_token(self) -> bool:
        """Return whether the last token is one that ends a generation."""
        return self.token_ids[-1] in self.end_token_ids

    def begin_restore(self) -> RestoreState:
        """Return the state of what it gets back, a fresh one at first."""
        if self.restore is None:
            self.restore = RestoreState()
        return self.restore

    def extend_hashes(self, block_tokens: int) -> None:
        """Hash the full blocks that have no hash. O(new tokens)."""
        num_hashed = len(self.hashes)
        parent = self.hashes[-1] if self.hashes else self.root
        self.hashes += block_hashes(parent, self.token_ids[num_hashed * block_tokens :], block_tokens)

    def whole_hash(self, block_tokens: int) -> BlockHash:
        """Return a hash of all tokens; that of the last block where it is full. O(new tokens)."""
        self.extend_hashes(block_tokens)
        tail = self.token_ids[len(self.hashes) * block_tokens :]
        parent = self.hashes[-1] if self.hashes else self.root
        return block_hashes(parent, tail, len(tail))[0] if tail else parent

    def sampling_context(self) -> SamplingContext:
        """Return what the choice of the next token depends on."""
        request = self.request
        return SamplingContext(
            request.params, self.token_ids, self.num_prompt_tokens, self.end_token_ids, request.constraint
        )

    def finish_reason(self) -> FinishReason | None:
        """Return why the last token ends the generation, or None; raise ConstraintError if the form is broken."""
        constraint, is_end = self.request.constraint, self.ends_with_end_token
        if is_end and (constraint is not None or self.num_output_tokens > self.request.params.min_tokens):
            return "stop"
        if constraint is not None:
            constraint.follow(self.token_ids, self.num_prompt_tokens)
            if constraint.is_complete:
                return "stop"
        return "length" if self.num_output_tokens >= self.max_output_tokens else None


_key = attrgetter("queue_key")


class SequenceQueues:
    """Living sequences by phase.

    Invariants: each sequence is in exactly one queue, that of its phase, until it is finished; `waiting` and `running`
    are in order of queue keys, and `waiting_of` has by tenant, in that order, who is in `waiting`.

    Attributes:
        num_changes: Times that a sequence entered or left `running`.
        has_tenants: Whether there has been a sequence with a tenant; else nobody takes turns.
    """

    def __init__(self) -> None:
        self.waiting: list[Sequence] = []
        self.waiting_of: dict[str, list[Sequence]] = {}
        self.running: list[Sequence] = []
        self.receiving: list[Sequence] = []
        self.num_changes = 0
        self.has_tenants = False
        self._queues = {Phase.WAITING: self.waiting, Phase.RUNNING: self.running, Phase.RECEIVING: self.receiving}

    def turn_seconds(self, sequence: Sequence, now: float) -> float:
        """Return when a sequence's turn is: as long before others' as their router had placed it before them.

        But after those that it had placed before. Else that is the moment when it comes, later by `LEVEL_SECONDS` per
        level of its priority. Others are those of the same priority without a first token, whose turn is `LATE_SECONDS`
        before its own or less.
        """
        request = sequence.request
        due = turn = due_seconds(now, request.priority)
        earlier, later = -math.inf, math.inf  # turns of who was placed before it, and after it
        for waiting_or_running in (self.waiting, self.running) if request.placement_id else ():
            for each in reversed(waiting_or_running):
                each_due = each.queue_key.due_seconds
                if each_due < due - LATE_SECONDS:
                    break
                if each.request.priority == request.priority and not each.stats.first_token:
                    gap_seconds = seconds_between(request.placement_id, each.request.placement_id) or 0.0
                    if gap_seconds < 0:
                        earlier = max(earlier, each_due)
                        break
                    if gap_seconds:
                        turn, later = min(turn, each_due - gap_seconds), min(later, each_due)
        return turn if turn > earlier else min(due, (earlier + later) / 2)

    def add(self, sequence: Sequence) -> None:
        """Queue a sequence that waits."""
        for queue in (self.waiting, self.waiting_of.setdefault(sequence.request.tenant, [])):
            insort(queue, sequence, key=_key)

    def move(self, sequence: Sequence, phase: Phase) -> None:
        """Take a sequence from the queue of its phase to that of another; FINISHED has none."""
        self._queues[sequence.phase].remove(sequence)
        if sequence.phase is Phase.WAITING:
            (own := self.waiting_of[sequence.request.tenant]).remove(sequence)
            if not own:
                del self.waiting_of[sequence.request.tenant]
        self.num_changes += Phase.RUNNING in (sequence.phase, phase)
        sequence.phase = phase
        if phase is Phase.RECEIVING:
            self.receiving.append(sequence)
        elif phase is Phase.WAITING:
            self.add(sequence)
        elif phase is Phase.RUNNING:
            insort(self.running, sequence, key=_key)


def due_seconds(arrival_seconds: float, priority: int) -> float:
    """Return the moment by which a sequence's turn is reckoned; the earliest comes first."""
    return arrival_seconds + LEVEL_SECONDS * priority


def first_candidates(waiting: Iterable[Sequence]) -> Iterator[Sequence]:
    """Yield who waits: `MAX_CANDIDATES` that hand KV out, as many others, and who is held up by something else."""
    num_left = [MAX_CANDIDATES, MAX_CANDIDATES]  # of others, and of those that may all lack room for what they hand out
    for sequence in waiting:
        is_export = sequence.request.export is not None
        if num_left[is_export] <= 0:
            if not any(num_left):
                return
            continue
        num_left[is_export] -= not sequence.is_held_up
        yield sequence


def new_sequence(
    request: EngineRequest,
    *,
    max_context_tokens: int,
    max_pool_tokens: int,
    eos_token_ids: tuple[int, ...],
    model_revision_digest: str,
    block_tokens: int,
) -> Sequence:
    """Return the sequence of a request, waiting. Without a limit it ends where the context or the memory does."""
    params, num_tokens = request.params, len(request.prompt_token_ids) + len(request.output_token_ids)
    room = max_context_tokens - len(request.prompt_token_ids)
    room_in_pool = max(1, max_pool_tokens - len(request.prompt_token_ids))
    max_output_tokens = min(params.max_tokens or room_in_pool, room)
    if request.purpose is Purpose.PREFILL:
        max_output_tokens = len(request.output_token_ids) + 1
    return Sequence(
        request=request,
        max_output_tokens=max_output_tokens,
        end_token_ids=params.stop_token_ids | (frozenset() if params.ignore_eos else frozenset(eos_token_ids)),
        root=root_hash(model_revision_digest, block_tokens, request.cache_salt),
        token_ids=[*request.prompt_token_ids, *request.output_token_ids],
        num_prompt_tokens=len(request.prompt_token_ids),
        purpose=request.purpose,
        suspect_end=num_tokens + SUSPECT_TOKENS if request.is_suspect else 0,
        scoring=PromptScoring(len(request.prompt_token_ids) - 1) if request.is_scored else None,
    )
