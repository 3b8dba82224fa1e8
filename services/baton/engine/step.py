"""One forward pass as the scheduler plans it: who is computed, whose logits choose a token, who shares them."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from baton.engine.offload import MovedOut, Restored
from baton.engine.pace import PassWork
from baton.engine.runners.base import Span
from baton.engine.sequence import Sequence
from baton.kv.pool import BlockId


class BlockCopy(NamedTuple):
    """A block whose K and V another one gets."""

    source: BlockId
    """Read after the pass."""
    target: BlockId
    """Written after the pass."""


class Twin(NamedTuple):
    """A sequence with the very tokens of one whose last position the pass computes: it takes the same logits."""

    sequence: Sequence
    """Has the KV of all positions after the pass: in the leader's full blocks and a copy of the last, partial one."""
    copied: BlockCopy | None
    """The partial block; None where all blocks are full."""


class Sampled(NamedTuple):
    """A sequence that gets a token."""

    sequence: Sequence
    """Who."""
    row: int
    """Row of the logits from which it is chosen."""


class Scored(NamedTuple):
    """A sequence whose prompt's log-probabilities the pass brings, for part of the prompt.

    Interval table: rows [row, row + num_rows) are the logits after positions [position, position + num_rows), and
    judge the tokens at [position + 1, position + num_rows + 1).
    """

    sequence: Sequence
    """Who."""
    row: int
    """Row of the logits after `position`."""
    num_rows: int
    """Rows, 1 or more."""
    position: int
    """Position before the first token judged."""


@dataclass(slots=True)
class Step:
    """One forward pass, planned span by span."""

    sequences: list[Sequence] = field(default_factory=list)
    """Sequences computed, one per span."""
    spans: list[Span] = field(default_factory=list)
    """What is computed of each. A span may read blocks that an earlier one of the same pass writes."""
    twins: list[Twin] = field(default_factory=list)
    """Sequences that need no computation because another one's is theirs."""
    admitted: list[Sequence] = field(default_factory=list)
    """Sequences that got their blocks for this pass, in order of arrival; also those that only receive."""
    moved_out: list[MovedOut] = field(default_factory=list)
    """Blocks to copy to host memory before the pass overwrites them."""
    restored: list[Restored] = field(default_factory=list)
    """Blocks to fill from host memory before the pass reads them, after those are copied."""
    num_tokens: int = 0
    """Positions computed."""
    num_pairs: int = 0
    """Pairs of a position computed and one that it attends to."""
    num_prompts: int = 0
    """Spans that are part of a prompt."""
    max_tokens: int = 0
    """Positions that it may compute."""
    scored: list[Scored] = field(default_factory=list)
    """Sequences whose prompt is judged."""
    _sampled: list[Sampled] = field(default_factory=list)
    _prompts: dict[Sequence, tuple[int, int]] = field(default_factory=dict)  # end of the span, last row so far
    _num_rows: int = 0

    @property
    def work(self) -> PassWork:
        """Return what the pass computes."""
        return PassWork(self.num_tokens, self.num_pairs)

    @property
    def members(self) -> list[Sequence]:
        """Return the sequences that fail if the pass does."""
        if not self.admitted and not self.twins:
            return self.sequences
        exporting = (sequence for sequence in self.admitted if sequence.request.export)
        twins = (twin.sequence for twin in self.twins)
        restored = (each.sequence for each in self.restored)
        return list(dict.fromkeys([*self.sequences, *twins, *exporting, *restored]))

    @property
    def copies(self) -> list[BlockCopy]:
        """Return the blocks to copy when the pass is computed."""
        return [twin.copied for twin in self.twins if twin.copied is not None]

    @property
    def sampled(self) -> list[Sampled]:
        """Return the sequences that get a token, in order of arrival."""
        return sorted(self._sampled, key=lambda entry: entry.sequence.arrival)

    def add(self, sequence: Sequence, num_tokens: int) -> None:
        """Compute the next positions of a sequence."""
        start = sequence.num_computed
        end, num_all = start + num_tokens, len(sequence.token_ids)
        logits_from = end - 1 if end == num_all else end
        if sequence.num_scored < min(end, sequence.score_end):
            logits_from = sequence.num_scored
            num_scored = min(end, sequence.score_end) - logits_from
            self.scored.append(Scored(sequence, self._num_rows, num_scored, logits_from))
        self._num_rows += end - logits_from
        if end == num_all:
            self._sampled.append(Sampled(sequence, self._num_rows - 1))
        if start + 1 < num_all:
            self.num_prompts += 1
            self._prompts[sequence] = (end, self._num_rows - 1)
        self.num_tokens += num_tokens
        self.num_pairs += num_tokens * (start + end) // 2
        self.sequences.append(sequence)
        self.spans.append(_span(sequence, end, logits_from))

    def add_twin(self, sequence: Sequence, leader: Sequence, block_tokens: int) -> None:
        """Give a sequence the logits of another one, which this pass computes to its end, and what its blocks lack."""
        num_full_blocks, num_tail_tokens = divmod(len(sequence.token_ids), block_tokens)
        source, target = (table.block_table[num_full_blocks:] for table in (leader, sequence))
        self.twins.append(Twin(sequence, BlockCopy(source[0], target[0]) if num_tail_tokens else None))
        _, last_row = self._prompts[leader]
        self._sampled.append(Sampled(sequence, last_row))

    def end_of(self, sequence: Sequence) -> int:
        """Return the position up to which a sequence in the prefill phase is computed after the pass."""
        end, _ = self._prompts.get(sequence, (sequence.num_computed, 0))
        return end


def _span(sequence: Sequence, end: int, logits_from: int) -> Span:
    start, export = sequence.num_computed, sequence.request.export
    return Span(
        token_ids=sequence.token_ids[start:end],
        start=start,
        block_table=sequence.block_table,
        needs_logits=logits_from < end,
        logits_from=logits_from if logits_from < end - 1 else None,
        layer_sink=partial(export, start) if export and end > sequence.request.kv_token_begin else None,
    )
