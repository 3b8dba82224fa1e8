"""One forward pass: sequences computed, rows of logits that choose tokens, and what sequences gain by the pass."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple, Self

from baton.engine.kv_cache.offload import BlockSwaps
from baton.engine.runners.base import UNKNOWN_TOKEN, Span
from baton.engine.sequence import Phase, PromptScoring, Sequence
from baton.engine.step_cost import StepWork
from baton.kv.hashing import BlockHash
from baton.kv.pool import BlockId, BlockPool

_UNKNOWN: list[int] = [UNKNOWN_TOKEN]


class BlockCopy(NamedTuple):
    """A block whose K and V another one gets."""

    source: BlockId
    """Read after the pass."""
    target: BlockId
    """Written after the pass."""


class DuplicatePrompt(NamedTuple):
    """A sequence with the very tokens of one whose last position the pass computes: it takes the same logits."""

    sequence: Sequence
    """Has the KV of all positions after the pass: in the leader's full blocks and a copy of the last, partial one."""
    copied: BlockCopy | None
    """The partial block; None where all blocks are full."""


class Sampled(NamedTuple):
    """A sequence that gets a token."""

    sequence: Sequence
    row: int
    """Row of the logits from which the token is chosen."""


class Scored(NamedTuple):
    """A sequence whose prompt's log-probabilities the pass brings, for part of the prompt.

    Interval table: rows [row, row + num_rows) are the logits after positions [position, position + num_rows), and
    judge the tokens at [position + 1, position + num_rows + 1).
    """

    sequence: Sequence
    scoring: PromptScoring
    """How far its log-probabilities are."""
    row: int
    """Row of the logits after `position`."""
    num_rows: int
    """Rows, 1 or more."""
    position: int
    """Position before the first token judged."""


@dataclass(slots=True)
class CacheChanges:
    """What a pass gives to the prefix cache; if the pass fails, that is taken back."""

    stored: list[BlockHash] = field(default_factory=list)
    """Hashes of the blocks that went into the cache when the pass was launched."""
    filled: list[BlockHash] = field(default_factory=list)
    """Hashes of the blocks that went into it when the pass was planned, because host memory fills them first."""
    unproven: frozenset[BlockHash] = frozenset()
    """Hashes of the blocks that are to be filled by the pass that was in flight when this one was planned."""


@dataclass(slots=True)
class Step:
    """One forward pass, planned span by span; or several, of the same decoding sequences, with `num_passes`."""

    sequences: list[Sequence] = field(default_factory=list)
    """Sequences computed, one per span."""
    spans: list[Span] = field(default_factory=list)
    """What is computed of each. A span may read blocks that an earlier one of the same pass writes."""
    duplicates: list[DuplicatePrompt] = field(default_factory=list)
    """Sequences that need no computation because another one's is theirs."""
    admitted: list[Sequence] = field(default_factory=list)
    """Sequences that got their blocks for this pass, in order of arrival; also those that only receive."""
    swaps: BlockSwaps = field(default_factory=BlockSwaps)
    """Blocks to copy to and from host memory before the pass."""
    cache: CacheChanges = field(default_factory=CacheChanges)
    """What the pass gives to the prefix cache."""
    kept: dict[Sequence, int] = field(default_factory=dict)
    """Positions, of the tenth of short prompts, for sequences that admission has not looked at yet."""
    num_tokens: int = 0
    num_pairs: int = 0
    """Pairs of a position computed and one that it attends to."""
    num_prompts: int = 0
    """Spans that are part of a prompt."""
    num_ended: int = 0
    """Prompts whose last position it computes."""
    num_rows: int = 0
    num_passes: int = 1
    """Passes in a row, each of the next position of every sequence; 1 unless all decode."""
    scored: list[Scored] = field(default_factory=list)
    """Sequences whose prompt is judged."""
    num_collected: int = 0
    """Of the passes, those whose tokens the host has: with the first, what its blocks hold is known to be right."""
    has_sinks: bool = False
    """Whether a span hands its K and V out."""
    is_following: bool = False
    """Whether a span feeds a token that the pass before chooses."""
    has_adapters: bool = False
    """Whether a span is computed with an adapter."""
    has_unanswered: bool = False
    """Whether a sequence is computed that had no token yet when the pass was planned."""
    is_alone: bool = False
    """Whether it is the pass of one sequence that is suspected of failing passes."""
    _sampled: list[Sampled] = field(default_factory=list)
    _is_sorted: bool = True
    _prompts: dict[Sequence, tuple[int, int]] = field(default_factory=dict)  # end of the span, last row so far

    @property
    def num_left(self) -> int:
        """Return of how many of the passes the host does not have the tokens yet."""
        return self.num_passes - self.num_collected

    @property
    def work(self) -> StepWork:
        """Return what the pass computes."""
        return StepWork(self.num_tokens, self.num_pairs)

    @property
    def members(self) -> list[Sequence]:
        """Return the sequences that fail if the pass does."""
        if not self.admitted and not self.duplicates and not self.swaps.ins:
            return self.sequences
        exporting = (sequence for sequence in self.admitted if sequence.request.export)
        duplicates = (duplicate.sequence for duplicate in self.duplicates)
        restored = (each.sequence for each in self.swaps.ins)
        return list(dict.fromkeys([*self.sequences, *duplicates, *exporting, *restored]))

    def may_break(self, hashes: Iterable[BlockHash]) -> bool:
        """Return whether a block in the prefix cache may turn out not to hold what its hash says.

        A sequence that takes such a block over must be computed in this pass: if the pass fails, so does the sequence,
        and if the pass before fails, the sequence is computed again.
        """
        return not self.cache.unproven.union(self.cache.filled).isdisjoint(hashes)

    @property
    def copies(self) -> list[BlockCopy]:
        """Return the blocks to copy when the pass is computed."""
        return [duplicate.copied for duplicate in self.duplicates if duplicate.copied is not None]

    @property
    def is_decode(self) -> bool:
        """Return whether every sequence decodes, and nothing else is computed."""
        return not (self.num_prompts or self.duplicates or self.scored or self.admitted or self.has_sinks)

    @property
    def sampled(self) -> list[Sampled]:
        """Return the sequences that get a token, in order of arrival."""
        if not self._is_sorted:
            self._sampled.sort(key=lambda entry: entry.sequence.queue_key.arrival)
            self._is_sorted = True
        return self._sampled

    @classmethod
    def after(cls, *last: Step) -> Self:
        """Return an empty pass, to be planned behind the last ones."""
        unproven = [block_hash for step in last if not step.num_collected for block_hash in step.cache.stored]
        return cls(cache=CacheChanges(unproven=frozenset(unproven)))

    def add(self, sequence: Sequence, num_tokens: int) -> None:
        """Compute the next positions of a sequence."""
        start = sequence.num_computed
        end, num_all = start + num_tokens, len(sequence.token_ids) + sequence.num_ahead
        logits_from = end - 1 if end == num_all else end
        scoring = sequence.scoring
        if scoring is not None and scoring.num_scored < min(end, scoring.end):
            logits_from = scoring.num_scored
            num_scored = min(end, scoring.end) - logits_from
            self.scored.append(Scored(sequence, scoring, self.num_rows, num_scored, logits_from))
        self.num_rows += end - logits_from
        if end == num_all:
            self._add_sampled(sequence, self.num_rows - 1)
        self.has_unanswered = self.has_unanswered or sequence.stats.first_token == 0.0
        if start + 1 < num_all:
            self.num_prompts += 1
            self.num_ended += end == num_all
            self._prompts[sequence] = (end, self.num_rows - 1)
        self.num_tokens += num_tokens
        self.num_pairs += num_tokens * (start + end) // 2
        self.is_following = self.is_following or sequence.num_ahead > 0
        self.sequences.append(sequence)
        self.spans.append(span := _span(sequence, end, logits_from))
        self.has_sinks = self.has_sinks or span.layer_sink is not None
        self.has_adapters = self.has_adapters or span.adapter != ""

    def add_decoding(self, sequence: Sequence) -> None:
        """Compute the next position of a sequence that decodes, as `add` does."""
        if sequence.request.export is not None or sequence.scoring is not None:
            self.add(sequence, 1)
            return
        if sequence.num_ahead:
            self.is_following = True
            follows_row, token_ids = sequence.last_row, _UNKNOWN
        else:
            follows_row, token_ids = None, sequence.token_ids[-1:]
        row = self.num_rows
        self.num_rows, self.num_tokens = row + 1, self.num_tokens + 1
        self.sequences.append(sequence)
        start = sequence.num_computed
        self.num_pairs += start
        adapter = sequence.request.adapter
        if adapter:
            self.has_adapters = True
        if sequence.stats.first_token == 0.0:
            self.has_unanswered = True
        self.spans.append(Span(token_ids, start, sequence.block_table, True, None, None, follows_row, adapter))
        self._add_sampled(sequence, row)

    def may_repeat(self, num_sequences: int) -> bool:
        """Return whether all of so many sequences decode here, and none of their outputs is as long as it may be."""
        is_whole = self.is_decode and len(self.sequences) == num_sequences > 0
        return is_whole and all(sequence.num_outputs_left > 0 for sequence in self.sequences)

    def again(self) -> Step:
        """Return the next pass of the same sequences, which all decode, each one position further."""
        first = self.sequences[0]
        if first.num_ahead:
            spans = [
                Span(_UNKNOWN, sequence.num_computed, sequence.block_table, True, None, None, row)
                for row, sequence in enumerate(self.sequences)
            ]
        else:
            spans = [
                Span(sequence.token_ids[-1:], sequence.num_computed, sequence.block_table, True)
                for sequence in self.sequences
            ]
        if self.has_adapters:
            pairs = zip(spans, self.sequences, strict=True)
            spans = [span._replace(adapter=sequence.request.adapter) for span, sequence in pairs]
        return Step(
            sequences=self.sequences,
            spans=spans,
            num_tokens=self.num_tokens,
            num_pairs=self.num_pairs + self.num_tokens * self.num_passes,
            num_rows=self.num_rows,
            is_following=first.num_ahead > 0,
            has_adapters=self.has_adapters,
            _sampled=self._sampled,
            _is_sorted=self._is_sorted,
        )

    def add_duplicate(self, sequence: Sequence, leader: Sequence, block_tokens: int) -> None:
        """Give a sequence the logits of another one, which this pass computes to its end, and what its blocks lack."""
        num_full_blocks, num_tail_tokens = divmod(len(sequence.token_ids), block_tokens)
        source, target = (table.block_table[num_full_blocks:] for table in (leader, sequence))
        self.duplicates.append(DuplicatePrompt(sequence, BlockCopy(source[0], target[0]) if num_tail_tokens else None))
        _, last_row = self._prompts[leader]
        self._add_sampled(sequence, last_row)

    def end_of(self, sequence: Sequence) -> int:
        """Return the position up to which a sequence in the prefill phase is computed after the pass."""
        end, _ = self._prompts.get(sequence, (sequence.num_computed, 0))
        return end

    def _add_sampled(self, sequence: Sequence, row: int) -> None:
        sampled = self._sampled
        arrival = sequence.queue_key.arrival
        self._is_sorted = self._is_sorted and not (sampled and sampled[-1].sequence.queue_key.arrival > arrival)
        sampled.append(Sampled(sequence, row))


class StepBudget(NamedTuple):
    """What a pass may hold."""

    max_tokens: int
    filled_tokens: int = 0
    """Positions that it holds if all prompts that there are fill it up; 0: it is filled up."""
    num_prompts: int = 0
    """These prompts."""
    fixed_tokens: float = 0.0
    """Positions of prompts that take as long as what any pass does besides."""
    free_tokens: float = 0.0
    """Positions up to which a pass takes as long as reading the weights."""

    def room(self, step: Step) -> int:
        """Return the positions that a pass can still take of sequences for which it keeps none."""
        return max(0, self.room_behind(step.num_tokens, step.num_ended) - sum(step.kept.values()))

    def room_behind(self, num_tokens: int, num_ended: int) -> int:
        """Return what a pass of so many positions can still take, the last ones of some prompts among them.

        What others would add delays the tokens of these, but for what is free; each of the others waits for one more
        pass otherwise.
        """
        num_added = self.filled_tokens - max(num_tokens, self.free_tokens)
        is_enough = num_added * num_ended > self.fixed_tokens * (self.num_prompts - num_ended)
        return max(0, (min(self.max_tokens, round(self.free_tokens)) if is_enough else self.max_tokens) - num_tokens)


def _span(sequence: Sequence, end: int, logits_from: int) -> Span:
    start, export = sequence.num_computed, sequence.request.export
    if sequence.num_ahead:
        follows_row, adapter = sequence.last_row, sequence.request.adapter
        return Span(_UNKNOWN, start, sequence.block_table, True, follows_row=follows_row, adapter=adapter)
    return Span(
        token_ids=sequence.token_ids[start:end],
        start=start,
        block_table=sequence.block_table,
        needs_logits=logits_from < end,
        logits_from=logits_from if logits_from < end - 1 else None,
        layer_sink=partial(export.sink, start) if export is not None and end > export.token_begin else None,
        adapter=sequence.request.adapter,
    )


class SequenceProgress:
    """Enters passes into sequences, as computed from their launch on: what is asked for later runs after them."""

    def __init__(self, pool: BlockPool) -> None:
        self._pool = pool

    def begin(self, step: Step) -> None:
        """Enter a pass that has been launched: positions count as computed, and their blocks may be shared.

        Later passes run behind this one; if it fails, `take_back` undoes what is entered here.
        """
        block_tokens, num_more = self._pool.block_tokens, step.num_passes - 1
        for sequence, span in zip(step.sequences, step.spans, strict=True):
            end = sequence.num_computed = span.start + len(span.token_ids) + num_more
            if end >= (sequence.num_stored_blocks + 1) * block_tokens:
                step.cache.stored += self.store_full_blocks(sequence, len(sequence.token_ids))
        for scored in step.scored:
            scored.scoring.num_scored += scored.num_rows
        for sequence, row in step.sampled:
            sequence.num_ahead += step.num_passes
            sequence.last_row = row

    def take_back(self, step: Step) -> None:
        """Undo `begin`, and take what the pass gave to the prefix cache out of it; positions stay as they are."""
        for block_hash in (*step.cache.filled, *step.cache.stored):
            self._pool.forget(self._pool.match([block_hash]))
        for scored in step.scored:
            scored.scoring.num_scored -= scored.num_rows
        for sequence, _ in step.sampled:
            sequence.num_ahead = 0

    def enter(self, sequences: Seq[Sequence], token_ids: Seq[int]) -> None:
        """Append the tokens that a pass in flight has chosen, to sequences that are not finished."""
        for sequence, token_id in zip(sequences, token_ids, strict=True):
            sequence.num_ahead -= 1
            sequence.token_ids.append(token_id)

    def lengthen(self, step: Step, max_passes: int) -> None:
        """Let a pass of decoding sequences be several in a row, as far as their outputs and the free blocks go."""
        num_passes = min(max_passes, *(sequence.num_outputs_left for sequence in step.sequences))
        missing = [
            self._pool.num_blocks_for(sequence.num_computed + num_passes) - len(sequence.block_table)
            for sequence in step.sequences
        ]
        if num_passes < 2 or sum(each for each in missing if each > 0) > self._pool.num_available:
            return
        step.num_passes = num_passes
        for sequence, num_missing in zip(step.sequences, missing, strict=True):
            if num_missing > 0:
                sequence.block_table += self._pool.allocate(num_missing)

    def shorten(self, step: Step, num_passes: int) -> None:
        """Take back the last of several passes in a row, which the runner will not compute."""
        num_fewer = step.num_passes - num_passes
        step.num_passes = num_passes
        for sequence in step.sequences:
            if sequence.phase is Phase.RUNNING:
                sequence.num_computed -= num_fewer
                sequence.num_ahead -= num_fewer

    def keep_computed(self, sequence: Sequence) -> None:
        """Leave to the prefix cache what a sequence has computed whose output is complete."""
        if sequence.phase is Phase.RUNNING:
            self.store_full_blocks(sequence, len(sequence.token_ids) - 1)  # the last one's KV may be in flight

    def store_full_blocks(self, sequence: Sequence, end: int) -> list[BlockHash]:
        """Offer the full blocks of [0, end) to the prefix cache; return the hashes of those not offered before."""
        num_full = min(sequence.num_computed, end) // self._pool.block_tokens
        num_stored = sequence.num_stored_blocks
        if num_full <= num_stored or not sequence.is_shareable:
            return []
        sequence.extend_hashes(self._pool.block_tokens)
        hashes = sequence.hashes[num_stored:num_full]
        for block_id, block_hash in zip(sequence.block_table[num_stored:num_full], hashes, strict=True):
            self._pool.store(block_id, block_hash)
        sequence.num_stored_blocks = num_full
        return hashes
