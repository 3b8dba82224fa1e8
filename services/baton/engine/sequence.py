"""A request inside the engine: its tokens, its blocks, how far it is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Literal, NamedTuple, Protocol

from baton.engine.constraints.constraint import Constraint
from baton.engine.request import SamplingParams
from baton.engine.runners.base import LayerKv
from baton.engine.sampling import SamplingContext
from baton.kv.hashing import BlockHash, block_hashes, root_hash
from baton.kv.pool import BlockId

FinishReason = Literal["stop", "length"]

SCORED_CHUNK_TOKENS = 128
"""Positions in one pass of a prompt whose log-probabilities are wanted: each brings a row of the vocabulary's size."""


class KvExport(Protocol):
    """Takes the KV of a PREFILL request, from the engine thread; must not block."""

    def __call__(self, start: int, layer: int, kv: LayerKv) -> None:
        """Take K and V of `layer` for the positions from `start`; those taken before, after a preemption, again."""


class Purpose(Enum):
    """What the engine does with a request."""

    GENERATE = "generate"
    """Compute the prompt and generate."""
    RECEIVE = "receive"
    """Take the prompt's KV and the first token from another node, then generate."""
    PREFILL = "prefill"
    """Compute the prompt, hand its KV out, sample one token."""


class Phase(Enum):
    """Where a sequence is."""

    WAITING = "waiting"
    """Has no blocks."""
    RECEIVING = "receiving"
    """Has blocks; another node's KV lands in them."""
    RUNNING = "running"
    """Has blocks and is computed."""
    FINISHED = "finished"
    """Has no blocks any more."""


@dataclass(frozen=True, slots=True)
class EngineRequest:
    """A request as services hand it over."""

    request_id: str
    """Unique among the living ones of this engine."""
    prompt_token_ids: tuple[int, ...]
    """Prompt, 1 token or more."""
    params: SamplingParams
    """How tokens are chosen."""
    output_token_ids: tuple[int, ...] = ()
    """Output that an earlier attempt has delivered; generation goes on after it."""
    purpose: Purpose = Purpose.GENERATE
    """What to do."""
    constraint: Constraint | None = None
    """Compiled `params.structured_output`; from the submission on the engine's alone."""
    adapter: str = ""
    """Name of the adapter with which it is computed; empty: the model alone."""
    cache_salt: str = ""
    """Separates prefix caches."""
    priority: int = 0
    """Whose turn it is where requests wait: lower comes earlier."""
    is_cache_bypassed: bool = False
    """Whether to neither read nor fill the prefix cache."""
    kv_token_begin: int = 0
    """For PREFILL: first position whose KV is handed out."""
    export: KvExport | None = None
    """For PREFILL: where to hand it."""
    may_begin: Callable[[], bool] = lambda: True
    """For PREFILL: whether there is room for what will be handed out; asked by the engine's thread before it begins."""
    chunk_tokens: int = 0
    """For PREFILL: positions computed in one pass at most; 0: the engine decides."""

    @property
    def is_scored(self) -> bool:
        """Return whether the prompt's log-probabilities are still to be told: with output, an earlier attempt did."""
        return self.params.num_prompt_logprobs is not None and not self.output_token_ids


@dataclass(slots=True)
class SequenceTimes:
    """Times on the engine's clock, seconds; 0: not yet."""

    submitted: float = 0.0
    """Taken by the engine."""
    started: float = 0.0
    """First computed, or first KV awaited."""
    first_token: float = 0.0
    """First token known here."""


class QueueKey(NamedTuple):
    """A place in the order of sequences; no two are equal."""

    due_seconds: float
    """Moment by which it is reckoned."""
    arrival: int
    """Decides between equal moments."""


@dataclass(slots=True, eq=False)
class Sequence:
    """A living request. The scheduler alone changes it.

    Interval table of positions: [0, num_computed) have their KV in blocks, or get it from a pass under way;
    [num_computed, len(token_ids) + num_ahead) have not. The token at [len(token_ids), len(token_ids) + num_ahead) is
    known to the device alone. A sequence whose last position alone is not computed decodes; a token is sampled whenever
    all are.
    """

    request: EngineRequest
    """What was asked."""
    max_output_tokens: int
    """Output tokens after which the generation ends."""
    end_token_ids: frozenset[int]
    """Tokens that end it."""
    root: BlockHash
    """Where the chain of block hashes starts."""
    token_ids: list[int]
    """Prompt and output."""
    num_prompt_tokens: int
    """Length of the prompt."""
    purpose: Purpose
    """What to do; RECEIVE turns into GENERATE when the KV has arrived or the other node is given up."""
    phase: Phase = Phase.WAITING
    """Where it is."""
    block_table: list[BlockId] = field(default_factory=list)
    """Blocks, in order of positions."""
    hashes: list[BlockHash] = field(default_factory=list)
    """Hashes of the full blocks of `token_ids`, extended as it grows."""
    num_computed: int = 0
    """Positions whose KV is in blocks, or on its way there."""
    num_ahead: int = 0
    """Tokens that passes under way choose; 0 where every token is known."""
    last_row: int = 0
    """With `num_ahead`: row of the pass under way from which the last of them is chosen."""
    num_stored_blocks: int = 0
    """Leading blocks already offered to the prefix cache."""
    is_rounded: bool = False
    """Whether KV was rounded on its way here: then nothing after the cached prefix is what others compute."""
    num_cached: int = 0
    """Positions of prompt and earlier output found in the prefix cache at first admission."""
    num_shared: int = 0
    """Positions after them whose KV another sequence computed in the pass of first admission."""
    score_end: int = 0
    """Position of the last prompt token where the prompt's log-probabilities are wanted, else 0."""
    num_scored: int = 0
    """Positions whose logits have become log-probabilities of the prompt's tokens; up to `score_end`."""
    arrival: int = 0
    """Place in the order in which sequences came."""
    due_seconds: float = 0.0
    """Moment by which its turn is reckoned, see `engine/scheduling/order.py`; the earliest comes first."""
    num_overtaken_blocks: int = 0
    """Blocks taken by sequences behind it while there were too few for it."""
    awaited: BlockHash | None = None
    """While it waits: block, or whole sequence, that another one computes and that it will take over."""
    kept_hashes: list[BlockHash] = field(default_factory=list)
    """While it waits after a preemption: hashes of leading blocks that are copied to host memory if they must go."""
    is_reading: bool = False
    """While it waits: whether blocks of it are being read from disk."""
    has_read_disk: bool = False
    """Whether blocks of it have been asked for from disk, which happens once."""
    num_read_blocks: int = 0
    """Blocks that came from there."""
    num_filled_blocks: int = 0
    """Blocks that were copied into the prefix cache for it while it waited."""
    filled_end: int = 0
    """Index of the block after the last of these."""
    num_preemptions: int = 0
    """Times its blocks were taken from it."""
    is_admitted: bool = False
    """Whether it has ever had blocks."""
    timeline: SequenceTimes = field(default_factory=lambda: SequenceTimes())
    """When what happened."""

    @property
    def turn(self) -> QueueKey:
        """Return its place in every queue: the lowest comes first, the highest is preempted first."""
        return QueueKey(self.due_seconds, self.arrival)

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
        """Return whether others may take over what is computed for it."""
        return not (self.request.is_cache_bypassed or self.is_rounded)

    @property
    def is_held_up(self) -> bool:
        """Return whether it waits for something besides its turn and its blocks."""
        return self.is_reading or self.awaited is not None

    @property
    def num_pending(self) -> int:
        """Return the positions that have no KV."""
        return len(self.token_ids) + self.num_ahead - self.num_computed

    @property
    def num_chunk_tokens(self) -> int:
        """Return how many positions of its prompt may be computed in one pass."""
        num_tokens = self.num_pending
        if self.num_scored < self.score_end:
            num_tokens = min(num_tokens, SCORED_CHUNK_TOKENS)
        return min(num_tokens, self.request.chunk_tokens or num_tokens)

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
        """Return the leading positions that need no computation if their KV exists: nobody wants their logits."""
        return self.num_scored if self.num_scored < self.score_end else len(self.token_ids) - 1

    @property
    def ends_with_end_token(self) -> bool:
        """Return whether the last token is one that ends a generation."""
        return self.token_ids[-1] in self.end_token_ids

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
        """Return why the last token ends the generation, or None if it does not.

        Raises:
            ConstraintError: If the output does not have the form that it must have.
        """
        constraint, is_end = self.request.constraint, self.ends_with_end_token
        if is_end and (constraint is not None or self.num_output_tokens > self.request.params.min_tokens):
            return "stop"
        if constraint is not None:
            constraint.follow(self.token_ids, self.num_prompt_tokens)
            if constraint.is_complete:
                return "stop"
        return "length" if self.num_output_tokens >= self.max_output_tokens else None


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
    params = request.params
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
        score_end=len(request.prompt_token_ids) - 1 if request.is_scored else 0,
    )
