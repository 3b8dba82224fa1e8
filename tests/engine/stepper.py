"""A scheduler and the mock model without the engine between them, driven pass by pass."""

from __future__ import annotations

from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor

from baton.engine.execution.passes import collect, launch, token_choice_of
from baton.engine.kv_cache.block_copy import swap_blocks
from baton.engine.kv_cache.ingest import export_cached
from baton.engine.kv_cache.offload import BlockSwaps
from baton.engine.request import EngineRequest
from baton.engine.runners.base import LayerKv
from baton.engine.runners.mock.state import kv_of, states_of
from baton.engine.sampling import SampledToken
from baton.engine.scheduling.admission import SchedulerLimits
from baton.engine.scheduling.scheduler import Scheduler
from baton.engine.scheduling.step import CacheChanges, Step, StepBudget
from baton.engine.sequence import Phase, Sequence, new_sequence
from baton.kv.pool import BlockPool
from engine.rig import INFO, LAYOUT, expected_tokens, mock_runner

BLOCK_TOKENS = 4
BLOCK_BYTES = BLOCK_TOKENS * LAYOUT.num_token_bytes()
SWIFT = 1e-9
"""Seconds of the copy of a block where copies are bounded: less than any computation."""


def sequence_of(request: EngineRequest) -> Sequence:
    """Return the sequence of a request to the mock model."""
    return new_sequence(
        request,
        max_context_tokens=INFO.max_context_tokens,
        max_pool_tokens=INFO.max_context_tokens,
        eos_token_ids=INFO.eos_token_ids,
        model_revision_digest=LAYOUT.model_revision_digest,
        block_tokens=BLOCK_TOKENS,
    )


class Stepper:
    """A scheduler and a runner without the engine between them."""

    def __init__(
        self,
        num_blocks: int = 16,
        max_batch_size: int = 4,
        max_step_tokens: int = 8,
        *,
        shares_prompts: bool = True,
        host_blocks: int = 0,
        copied_blocks: int = 0,
        target_tpot_seconds: float = 0.0,
        reading_seconds: float = 0.0,
        computes_for_others: bool = False,
    ) -> None:
        self.limits = SchedulerLimits(
            max_batch_size,
            max_step_tokens,
            shares_prompts,
            max_host_bytes=host_blocks * BLOCK_BYTES,
            target_tpot_seconds=target_tpot_seconds,
            reading_seconds=reading_seconds,
            computes_for_others=computes_for_others,
        )
        self.runner = mock_runner(num_blocks, BLOCK_TOKENS)
        self.scheduler = Scheduler(BlockPool(num_blocks, BLOCK_TOKENS), self.limits, block_bytes=BLOCK_BYTES)
        if copied_blocks:
            self.scheduler.offload.note_copied(1, SWIFT)
            self.scheduler.offload.max_copy_seconds = (copied_blocks + 0.5) * SWIFT
        self._budget: StepBudget | None = None
        self._admit = self.scheduler.admission.admit
        self.scheduler.admission.admit = self._admit_noted  # type: ignore[method-assign]
        self.sequences: list[Sequence] = []
        self.now = 0.0
        self.num_moved = 0
        self.scores: dict[Sequence, list[SampledToken]] = defaultdict(list)

    def add(self, request: EngineRequest) -> Sequence:
        """Queue a request."""
        sequence = sequence_of(request)
        self.scheduler.add(sequence, self.now)
        self.sequences.append(sequence)
        return sequence

    def admit_receiving(self) -> list[Sequence]:
        """Give blocks to sequences that only receive, as the engine does while a pass is in flight."""
        admitted = self.scheduler.admit_receiving()
        self.check()
        return admitted

    def _swap(self, swaps: BlockSwaps) -> None:
        with ThreadPoolExecutor(1) as lane:
            swap_blocks(self.runner, swaps, self.scheduler.offload, lane, lambda: 0.0)

    def copy_out(self) -> None:
        """Copy out what blocks held that such sequences have got, as the engine does before anything is written."""
        self._swap(BlockSwaps(self.scheduler.take_uncopied()))

    def step(self, *, fails: bool = False) -> Step | None:
        """Schedule, compute, and end what is complete; or end all members where the pass fails."""
        running = list(self.scheduler.running)
        step = self.scheduler.schedule()
        self._check_preempted(running)
        self.check()
        if step.spans:
            self._check_step(step)
        if fails:
            self.scheduler.undo(Step(cache=CacheChanges(filled=step.cache.filled)))
            for sequence in step.members:
                self.scheduler.finish(sequence)
            return step if step.members else None
        self._swap(step.swaps)
        self.num_moved += len(step.swaps.outs) + sum(len(each.contents) for each in step.swaps.ins)
        if not step.spans:
            assert not step.duplicates
            return None
        for sequence in step.admitted:
            export_cached(self.runner, sequence)
        launched = launch(self.runner, step, token_choice_of(step))
        self.scheduler.progress.begin(step)
        result = collect(launched)
        self.scheduler.progress.enter(result.sequences, result.token_ids)
        for scored, tokens in result.scores:
            assert scored.position == len(self.scores[scored.sequence]), "a position is scored twice or left out"
            self.scores[scored.sequence] += tokens
        for sequence in result.sequences:
            if sequence.finish_reason():
                self.scheduler.finish(sequence)
        self.check()
        return step

    def is_full(self, step: Step) -> bool:
        """Return whether the last pass that admitted anybody took no part of another prompt."""
        return self._budget is not None and not self._budget.room(step)

    def _admit_noted(self, step: Step, budget: StepBudget, *suspects: list[Sequence]) -> None:
        self._budget = budget
        self._admit(step, budget, *suspects)

    def check(self) -> None:
        """Prove what must hold between any two calls."""
        scheduler = self.scheduler
        scheduler.check_integrity()
        assert (
            len(scheduler.offload.store.hashes)
            == scheduler.offload.store.num_blocks
            <= scheduler.offload.store.max_blocks
        )
        assert len(scheduler.running) + len(scheduler.receiving) <= self.limits.max_batch_size
        assert not any(sequence.block_table for sequence in scheduler.waiting)
        for queue in (scheduler.waiting, scheduler.running):
            assert list(queue) == sorted(queue, key=lambda sequence: sequence.queue_key)
        owners: dict[int, Sequence] = {}
        for sequence in (*scheduler.running, *scheduler.receiving):
            for block_index, block_id in enumerate(sequence.block_table):
                _check_may_share(owners.setdefault(block_id, sequence), sequence, block_index)

    def _check_preempted(self, running: list[Sequence]) -> None:
        """Prove that whoever lost blocks comes after all that kept theirs."""
        lost = [sequence.queue_key for sequence in running if sequence.phase is Phase.WAITING]
        kept = [sequence.queue_key for sequence in running if sequence.phase is Phase.RUNNING]
        assert not lost or not kept or min(lost) > max(kept)

    def _check_step(self, step: Step) -> None:
        assert 1 <= step.num_tokens == sum(len(span.token_ids) for span in step.spans) <= self.limits.max_step_tokens
        for sequence, span in zip(step.sequences, step.spans, strict=True):
            assert sequence.phase is Phase.RUNNING
            assert len(span.block_table) * BLOCK_TOKENS >= span.end
        assert self.limits.shares_prompts or not step.duplicates
        arrivals = [sampled.sequence.queue_key.arrival for sampled in step.sampled]
        assert arrivals == sorted(arrivals)

    def write(self, sequence: Sequence, end: int) -> None:
        """Write the KV that the sequence lacks before a position, as another node would have made it."""
        self.copy_out()
        for layer, states in enumerate(states_of(sequence.token_ids, 0, LAYOUT.num_layers)):
            missing = states[sequence.num_computed : end]
            kv = kv_of(missing, LAYOUT.layers[layer], LAYOUT.dtype)
            self.runner.write_kv(sequence.block_table, layer, sequence.num_computed, len(missing), kv)

    def receive(self, sequence: Sequence) -> None:
        """Write all of the KV that the sequence lacks, and its first token."""
        prompt = sequence.token_ids
        self.write(sequence, len(prompt))
        sequence.token_ids.extend(expected_tokens(prompt, 1))
        if sequence.finish_reason():
            self.scheduler.finish(sequence)
        else:
            self.scheduler.commit_received(sequence)

    def garble(self, sequence: Sequence) -> None:
        """Leave wrong KV in the blocks of a receiving sequence, as a broken stream does."""
        self.copy_out()
        num_tokens = len(sequence.token_ids) - sequence.num_computed
        wrong = states_of([1] * num_tokens, 1000, LAYOUT.num_layers)
        for layer, spec in enumerate(LAYOUT.layers):
            kv = kv_of(wrong[layer], spec, LAYOUT.dtype)
            self.runner.write_kv(sequence.block_table, layer, sequence.num_computed, num_tokens, kv)


def _check_may_share(first: Sequence, second: Sequence, block_index: int) -> None:
    """A block of two sequences is a full one at the same place of the same beginning, and of one salt."""
    if first is second:
        return
    end = (block_index + 1) * BLOCK_TOKENS
    assert first.block_table[block_index] == second.block_table[block_index]
    assert first.root == second.root
    assert not any(sequence.request.is_cache_bypassed for sequence in (first, second))
    assert len(first.token_ids[:end]) == end
    assert first.token_ids[:end] == second.token_ids[:end]


class Exported:
    """What a prefill handed out."""

    def __init__(self) -> None:
        self.positions: set[tuple[int, int]] = set()
        self._parts: list[tuple[int, int, LayerKv]] = []

    def __call__(self, start: int, layer: int, kv: LayerKv) -> None:
        """Take K and V of a layer for the positions from `start`."""
        self._parts.append((start, layer, kv))

    def check(self, token_ids: list[int]) -> None:
        """Prove that every byte is that of these tokens, and note the layers and positions."""
        states = states_of(token_ids, 0, LAYOUT.num_layers)
        for start, layer, kv in self._parts:
            spec = LAYOUT.layers[layer]
            num_tokens = len(kv.keys) // (spec.num_kv_heads * spec.key_head_dim * LAYOUT.dtype.num_bytes)
            expected = kv_of(states[layer, start : start + num_tokens], spec, LAYOUT.dtype)
            assert (bytes(kv.keys), bytes(kv.values)) == (expected.keys, expected.values)
            self.positions |= {(layer, position) for position in range(start, start + num_tokens)}


def output_of(sequence: Sequence) -> list[int]:
    """Return the tokens generated."""
    return sequence.token_ids[sequence.num_prompt_tokens :]


def run(stepper: Stepper) -> None:
    """Run until nothing is left to compute."""
    while stepper.step():
        pass
