"""What layers keep of a sequence besides K and V: a slot for each sequence, and checkpoints at the ends of blocks.

A recurrent state stands for all positions before it, so that it is of use after exactly those. A checkpoint is a copy
of it at the end of a block, kept under that block's hash, which names the tokens and how many they are. A prefix can be
taken over as far as both its blocks and a checkpoint at the end of the last of them are there. They are kept at

- the end of the last full block of what is computed at once, where the next turn of a dialogue goes on;
- the end of blocks that were found without a checkpoint: others have begun so, too;
- every `CHECKPOINT_TOKENS` of a long prompt;
- the last block end of an output, one at a time.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as Seq

from baton.engine.runners.base import Span, StateSave, StateSpan
from baton.engine.sequence import Sequence, SequenceState
from baton.kv.hashing import BlockHash
from baton.kv.pool import BlockId, BlockPool

CHECKPOINT_TOKENS = 2048
"""Positions between checkpoints of a long prompt: about where a state is as large as K and V since the one before."""


class StateSlots:
    """Gives slots to sequences and to checkpoints. Without slots, for models that need none, it does nothing.

    Invariants: a sequence with blocks has one slot of its own; while a pass that it joins may read the checkpoint from
    which it goes on, it holds that one, too. A checkpoint is hittable only when its tokens are known; nobody writes it.

    Attributes:
        pool: Who has which slot; unreferenced ones with a hash are checkpoints.
    """

    def __init__(self, num_slots: int, block_tokens: int) -> None:
        self.pool = BlockPool(num_slots, block_tokens)

    def __bool__(self) -> bool:
        """Return whether the model keeps states."""
        return self.pool.num_blocks > 0

    def deepest(self, hashes: Seq[BlockHash], num_blocks: int) -> int:
        """Return how many of the first `num_blocks` blocks can be taken over: up to the last checkpoint among them."""
        while self and num_blocks and not self.pool.match(hashes[num_blocks - 1 : num_blocks]):
            num_blocks -= 1
        return num_blocks

    def has_room(self, sequence: Sequence, num_blocks: int) -> bool:
        """Return whether a sequence that takes over so many blocks gets a slot."""
        return not self or self.pool.num_available_beside(self._checkpoint(sequence, num_blocks)) > 0

    def take(self, sequence: Sequence, num_blocks: int) -> None:
        """Give a slot to a sequence that takes over so many blocks."""
        if not self:
            return
        sources = self._checkpoint(sequence, num_blocks)
        self.pool.acquire(sources)
        sequence.state = SequenceState(self.pool.allocate(1)[0], sources, sequence.num_matched_blocks)

    def release(self, sequence: Sequence) -> None:
        """Take a sequence's slots back; its checkpoints stay."""
        if (state := sequence.state) is not None:
            self._publish(sequence, state)
            self.pool.release(self.slots_of(sequence))
            sequence.state = None

    def received(self, sequence: Sequence) -> None:
        """Take note that the slot of a sequence has the state after all positions but that of its last token."""
        if (state := sequence.state) is not None:
            self._drop_sources(state)

    def forget(self, sequences: Iterable[Sequence] = ()) -> None:
        """Drop every checkpoint, and those that passes of some sequences were to leave: one of them may be wrong."""
        for state in (sequence.state for sequence in sequences):
            if state is not None:
                self.pool.release([BlockId(save.slot) for save in state.saves])
                state.saves.clear()
        self.pool.forget(map(BlockId, range(self.pool.num_blocks)))

    def placed(self, sequences: Seq[Sequence], spans: Seq[Span]) -> list[Span]:
        """Return the spans of a pass that is about to be launched, with their slots."""
        return [self._placed(each, span) for each, span in zip(sequences, spans, strict=True)]

    def slots_of(self, sequence: Sequence) -> list[BlockId]:
        """Return all slots that a sequence refers to."""
        state = sequence.state
        return [] if state is None else [state.slot, *state.sources, *(BlockId(save.slot) for save in state.saves)]

    def _placed(self, sequence: Sequence, span: Span) -> Span:
        state = sequence.state
        assert state is not None, "a sequence is computed without a slot"
        self._publish(sequence, state)
        if state.has_begun:  # the pass that read the checkpoint was launched before this one
            self._drop_sources(state)
        state.has_begun = True
        saves = [StateSave(end, self.pool.allocate(1)[0]) for end in self._ends(sequence, state, span)]
        state.saves += saves
        source = (state.sources or [state.slot])[0] if span.start else None
        return span._replace(state=StateSpan(source, state.slot, tuple(saves)))

    def _ends(self, sequence: Sequence, state: SequenceState, span: Span) -> list[int]:
        """Return the block ends of a span at which checkpoints are wanted, as many as there is room for."""
        if not sequence.is_shareable:
            return []
        block_tokens = self.pool.block_tokens
        ends = list(range((span.start // block_tokens + 1) * block_tokens, span.end + 1, block_tokens))
        if len(span.token_ids) > 1:
            last = (len(sequence.token_ids) - 1) // block_tokens
            wanted = (last * block_tokens, state.num_matched_blocks * block_tokens)
            ends = [end for end in ends if end in wanted or end % CHECKPOINT_TOKENS == 0]
        return ends[max(0, len(ends) - self.pool.num_available) :]

    def _publish(self, sequence: Sequence, state: SequenceState) -> None:
        """Make the checkpoints hittable that passes launched so far leave, as far as their tokens are known."""
        while state.saves and state.saves[0].end <= len(sequence.token_ids):
            save = state.saves.popleft()
            sequence.extend_hashes(self.pool.block_tokens)
            block_hash = sequence.hashes[save.end // self.pool.block_tokens - 1]
            self.pool.store(BlockId(save.slot), block_hash)
            self.pool.release([BlockId(save.slot)])
            if save.end > sequence.num_prompt_tokens:
                if state.output_hash is not None:
                    self.pool.forget(self.pool.match([state.output_hash]))
                state.output_hash = block_hash

    def _drop_sources(self, state: SequenceState) -> None:
        self.pool.release(state.sources)
        state.sources = []

    def _checkpoint(self, sequence: Sequence, num_blocks: int) -> list[BlockId]:
        return self.pool.match(sequence.hashes[num_blocks - 1 : num_blocks]) if num_blocks else []
