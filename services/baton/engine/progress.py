"""How far sequences are: what passes compute of them, and which of their blocks others may take over."""

from __future__ import annotations

from collections.abc import Sequence as Seq

from baton.engine.sequence import Phase, Sequence
from baton.engine.step import Step
from baton.kv.hashing import BlockHash
from baton.kv.pool import BlockPool


class Progress:
    """Enters passes into sequences.

    A pass counts as computed from its launch on, because whatever the runner is asked for later happens behind it.

    Args:
        pool: Whose prefix cache gets the full blocks.
    """

    def __init__(self, pool: BlockPool) -> None:
        self._pool = pool

    def begin(self, step: Step) -> None:
        """Enter a pass that has been launched: positions count as computed, and their blocks may be shared.

        What comes later is computed behind it; if it fails, `undo` takes back what it gave to the prefix cache.
        """
        block_tokens, num_more = self._pool.block_tokens, step.num_passes - 1
        for sequence, span in zip(step.sequences, step.spans, strict=True):
            end = sequence.num_computed = span.start + len(span.token_ids) + num_more
            if end >= (sequence.num_stored_blocks + 1) * block_tokens:
                step.stored += self.store_full_blocks(sequence, len(sequence.token_ids))
        for scoring in step.scored:
            scoring.sequence.num_scored += scoring.num_rows
        for sequence, row in step.sampled:
            sequence.num_ahead += step.num_passes
            sequence.last_row = row

    def take_back(self, step: Step) -> None:
        """Undo `begin`, and take what the pass gave to the prefix cache out of it; positions stay as they are."""
        for block_hash in (*step.filled, *step.stored):
            self._pool.forget(self._pool.match([block_hash]))
        for scoring in step.scored:
            scoring.sequence.num_scored -= scoring.num_rows
        for sequence, _ in step.sampled:
            sequence.num_ahead = 0

    def enter(self, sequences: Seq[Sequence], token_ids: Seq[int]) -> None:
        """Append the tokens that a pass under way has chosen, to sequences that are not finished."""
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
            self.store_full_blocks(sequence, len(sequence.token_ids) - 1)  # the last one's KV may be under way

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
