"""The scheduler, driven pass by pass over the mock model."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from baton.engine.runners.mock.state import kv_of, states_of
from baton.engine.sampling import sample
from baton.engine.scheduler import Scheduler, SchedulerLimits, Step
from baton.engine.sequence import EngineRequest, Phase, Purpose, Sequence, new_sequence
from baton.errors import OutOfMemoryError
from baton.kv.pool import BlockPool
from engine.rig import EOS, GREEDY, INFO, LAYOUT, expected_tokens, mock_runner, prompt_of, request_of

BLOCK_TOKENS = 4


class Bench:
    """A scheduler and a runner without the engine between them."""

    def __init__(self, num_blocks: int = 16, max_batch_size: int = 4, max_step_tokens: int = 8) -> None:
        self.limits = SchedulerLimits(max_batch_size, max_step_tokens)
        self.runner = mock_runner(num_blocks, BLOCK_TOKENS)
        self.scheduler = Scheduler(BlockPool(num_blocks, BLOCK_TOKENS), self.limits)
        self.sequences: list[Sequence] = []

    def add(self, request: EngineRequest) -> Sequence:
        """Queue a request."""
        sequence = new_sequence(
            request,
            max_context_tokens=INFO.max_context_tokens,
            max_pool_tokens=INFO.max_context_tokens,
            eos_token_ids=INFO.eos_token_ids,
            model_revision_digest=LAYOUT.model_revision_digest,
            block_tokens=BLOCK_TOKENS,
        )
        self.scheduler.add(sequence)
        self.sequences.append(sequence)
        return sequence

    def step(self) -> Step | None:
        """Admit, schedule, compute, and end what is complete."""
        self.scheduler.admit()
        self.check()
        step = self.scheduler.schedule()
        self.check()
        if step is None:
            return None
        assert 1 <= sum(len(span.token_ids) for span in step.spans) <= self.limits.max_step_tokens
        for sequence, span in zip(step.sequences, step.spans, strict=True):
            assert sequence.phase is Phase.RUNNING
            assert len(span.block_table) * BLOCK_TOKENS >= span.end
        logits = self.runner.forward(step.spans)
        tokens = sample(logits, [sequence.sampling_context() for sequence in step.sampled]) if step.sampled else []
        self.scheduler.advance(step, tokens)
        for sequence in step.sampled:
            if sequence.finish_reason():
                self.scheduler.finish(sequence)
        self.check()
        return step

    def check(self) -> None:
        """Prove what must hold between any two calls."""
        scheduler = self.scheduler
        scheduler.check_integrity()
        assert len(scheduler.running) + len(scheduler.receiving) <= self.limits.max_batch_size
        assert not any(sequence.block_table for sequence in scheduler.waiting)

    def receive(self, sequence: Sequence) -> None:
        """Write the KV that the sequence lacks, as another node would have made it, and its first token."""
        prompt = sequence.token_ids
        for layer, states in enumerate(states_of(prompt, 0, LAYOUT.num_layers)):
            missing = states[sequence.num_computed :]
            kv = kv_of(missing, LAYOUT.layers[layer], LAYOUT.dtype)
            self.runner.write_kv(sequence.block_table, layer, sequence.num_computed, len(missing), kv)
        sequence.token_ids.extend(expected_tokens(prompt, 1))
        if sequence.finish_reason():
            self.scheduler.finish(sequence)
        else:
            self.scheduler.commit_received(sequence)

    def garble(self, sequence: Sequence) -> None:
        """Leave wrong KV in the blocks of a receiving sequence, as a broken stream does."""
        num_tokens = len(sequence.token_ids) - sequence.num_computed
        wrong = states_of([1] * num_tokens, 1000, LAYOUT.num_layers)
        for layer, spec in enumerate(LAYOUT.layers):
            kv = kv_of(wrong[layer], spec, LAYOUT.dtype)
            self.runner.write_kv(sequence.block_table, layer, sequence.num_computed, num_tokens, kv)


def output_of(sequence: Sequence) -> list[int]:
    """Return the tokens generated."""
    return sequence.token_ids[sequence.num_prompt_tokens :]


def random_request(random: Random, index: int) -> EngineRequest:
    """Return a request; prompts share prefixes, so that caches are hit."""
    return request_of(
        prompt_of(random.randint(1, 24), seed=random.randint(1, 2)),
        f"r{index}",
        replace(GREEDY, max_tokens=random.randint(1, 10)),
        purpose=random.choice([Purpose.GENERATE, Purpose.GENERATE, Purpose.RECEIVE, Purpose.PREFILL]),
        is_cache_bypassed=random.random() < 0.2,
        chunk_tokens=random.choice([0, 0, 3]),
    )


def end_a_reception(bench: Bench, sequence: Sequence, random: Random) -> None:
    """Let a reception succeed, break, break after its first token, or go on."""
    what = random.choice(["wait", "wait", "commit", "fall back", "fall back after the first token"])
    if what == "commit":
        bench.receive(sequence)
    elif what == "fall back":
        bench.garble(sequence)
        bench.scheduler.fall_back(sequence)
    elif what != "wait":
        bench.garble(sequence)
        sequence.token_ids.extend(expected_tokens(sequence.token_ids, 1))
        (bench.scheduler.finish if sequence.finish_reason() else bench.scheduler.fall_back)(sequence)


def play(bench: Bench, arriving: list[EngineRequest], random: Random) -> list[Sequence]:
    """Let requests arrive, run, be aborted and end; return those aborted."""
    aborted: list[Sequence] = []
    for _ in range(1000):
        if arriving and random.random() < 0.5:
            bench.add(arriving.pop())
        living = [sequence for sequence in bench.sequences if sequence.phase is not Phase.FINISHED]
        if not arriving and not living:
            return aborted
        if living and random.random() < 0.02:
            aborted.append(random.choice(living))
            bench.scheduler.finish(aborted[-1])
        bench.step()
        for sequence in list(bench.scheduler.receiving):
            end_a_reception(bench, sequence, random)
            bench.check()
    raise AssertionError("the requests did not end")


@settings(max_examples=300, deadline=None)
@given(st.integers(9, 24), st.integers(1, 5), st.integers(1, 12), st.integers(1, 8), st.integers(0, 2**32))
def test_every_request_ends_with_its_own_tokens_whatever_runs_beside_it(
    num_blocks: int, max_batch_size: int, max_step_tokens: int, num_requests: int, seed: int
) -> None:
    """Random arrivals, lengths, pools, budgets, aborts and receptions: nothing lost, leaked or mixed up."""
    random = Random(seed)
    bench = Bench(num_blocks, max_batch_size, max_step_tokens)

    aborted = play(bench, [random_request(random, index) for index in range(num_requests)], random)

    assert bench.scheduler.pool.num_available == bench.scheduler.pool.num_blocks
    for sequence in bench.sequences:
        prompt, output = sequence.request.prompt_token_ids, output_of(sequence)
        assert output == expected_tokens(prompt, len(output))
        assert sequence in aborted or len(output) == sequence.max_output_tokens


def run(bench: Bench) -> None:
    """Run until nothing is left to compute."""
    while bench.step():
        pass


@pytest.mark.parametrize("length", [BLOCK_TOKENS - 1, BLOCK_TOKENS, BLOCK_TOKENS + 1, 2 * BLOCK_TOKENS])
def test_a_prompt_that_is_cached_to_its_end_computes_its_last_position(length: int) -> None:
    """Its logits are needed: the hit ends before the last token, at a block's border."""
    bench = Bench()
    first = bench.add(request_of(prompt_of(length)))
    run(bench)
    second = bench.add(request_of(prompt_of(length)))
    run(bench)

    assert second.num_cached == (length - 1) // BLOCK_TOKENS * BLOCK_TOKENS
    assert output_of(second) == output_of(first) == expected_tokens(prompt_of(length), 8)


def test_decoding_sequences_come_before_prompts() -> None:
    """Their pace holds while a long prompt is computed in what is left of the budget."""
    bench = Bench(max_step_tokens=5)
    decoding = bench.add(request_of(prompt_of(4)))
    bench.step()
    prefilling = bench.add(request_of(prompt_of(20, seed=2)))

    step = bench.step()

    assert step is not None
    assert step.sequences == [decoding, prefilling]
    assert [len(span.token_ids) for span in step.spans] == [1, 4]


def test_a_prefill_is_cut_into_the_chunks_it_asks_for() -> None:
    """Even where the budget would allow more."""
    bench = Bench(max_step_tokens=8)
    bench.add(request_of(prompt_of(8), purpose=Purpose.PREFILL, chunk_tokens=3))

    lengths = []
    while step := bench.step():
        lengths.append(len(step.spans[0].token_ids))

    assert lengths == [3, 3, 2]


def test_the_sequence_admitted_last_is_preempted_and_says_the_same() -> None:
    """Its blocks go to those before it; its output stays."""
    bench = Bench(num_blocks=6)
    params = replace(GREEDY, max_tokens=12)
    first = bench.add(request_of(prompt_of(8, 1), "first", params))
    last = bench.add(request_of(prompt_of(8, 2), "last", params))

    run(bench)

    assert (first.num_preemptions, last.num_preemptions) == (0, 1)
    assert output_of(first) == expected_tokens(prompt_of(8, 1), 12)
    assert output_of(last) == expected_tokens(prompt_of(8, 2), 12)


def test_receptions_that_hold_every_block_only_delay_the_others() -> None:
    """The running sequence gives way and goes on when a reception has ended."""
    bench = Bench(num_blocks=5)
    running = bench.add(request_of(prompt_of(4), "running"))
    receiving = bench.add(request_of(prompt_of(13, 2), "receiving", purpose=Purpose.RECEIVE))
    run(bench)
    assert running.phase is Phase.WAITING
    assert receiving.phase is Phase.RECEIVING
    assert not bench.scheduler.running

    bench.scheduler.finish(receiving)
    run(bench)

    assert output_of(running) == expected_tokens(prompt_of(4), 8)


def test_received_kv_can_be_hit_only_after_the_commit() -> None:
    """Until the summary has confirmed it, it is invisible."""
    bench = Bench()
    receiving = bench.add(request_of(prompt_of(12), purpose=Purpose.RECEIVE))
    bench.step()
    assert not bench.scheduler.pool.hashes

    bench.receive(receiving)

    assert bench.scheduler.pool.match(receiving.hashes) == receiving.block_table[:3]


def test_a_resumed_reception_decodes_after_its_earlier_output() -> None:
    """Prompt and earlier output are one prefill for the other node; one more token makes the commit."""
    bench = Bench()
    whole = expected_tokens(prompt_of(9), 8)
    sequence = bench.add(request_of(prompt_of(9), purpose=Purpose.RECEIVE, output_token_ids=tuple(whole[:3])))
    bench.step()
    bench.receive(sequence)

    assert sequence.num_pending == 1
    run(bench)
    assert output_of(sequence) == whole


def test_a_bypassed_cache_is_neither_read_nor_filled() -> None:
    """As the request asked."""
    bench = Bench()
    bench.add(request_of(prompt_of(12), is_cache_bypassed=True))
    run(bench)
    assert not bench.scheduler.pool.hashes

    bench.add(request_of(prompt_of(12)))
    run(bench)
    again = bench.add(request_of(prompt_of(12), is_cache_bypassed=True))
    run(bench)

    assert again.num_cached == 0


def test_requests_of_different_salts_share_nothing() -> None:
    """A hit would tell one tenant what another has asked."""
    bench = Bench()
    bench.add(request_of(prompt_of(12), cache_salt="a"))
    run(bench)
    other = bench.add(request_of(prompt_of(12), cache_salt="b"))
    same = bench.add(request_of(prompt_of(12), cache_salt="a"))
    run(bench)

    assert (other.num_cached, same.num_cached) == (0, 8)


@pytest.mark.parametrize(("num_tokens", "is_refused"), [(12, False), (13, False), (14, True)])
def test_a_request_that_could_not_finish_even_alone_is_refused(num_tokens: int, is_refused: bool) -> None:
    """The KV of the last token is never needed: 4 + 13 tokens fill 16 positions."""
    bench = Bench(num_blocks=4)
    request = request_of(prompt_of(4), params=replace(GREEDY, max_tokens=num_tokens))

    if is_refused:
        with pytest.raises(OutOfMemoryError, match="5 KV blocks of 4 tokens; the node has 4"):
            bench.add(request)
        return
    sequence = bench.add(request)
    run(bench)

    assert len(output_of(sequence)) == num_tokens


def end_of(tokens: list[int], stop: frozenset[int] = frozenset(), min_tokens: int = 0, max_tokens: int = 9) -> object:
    """Return how a generation with this output ends, if it does."""
    params = replace(GREEDY, stop_token_ids=stop, min_tokens=min_tokens, max_tokens=max_tokens)
    sequence = Bench().add(request_of(prompt_of(3), params=params))
    sequence.token_ids.extend(tokens)
    return sequence.finish_reason()


@pytest.mark.parametrize(
    ("tokens", "min_tokens", "reason"),
    [([5], 0, None), ([EOS], 0, "stop"), ([33], 0, "stop"), ([5, 33], 2, None), ([5, 5, 33], 2, "stop")],
)
def test_an_end_token_ends_only_after_the_minimum(tokens: list[int], min_tokens: int, reason: str | None) -> None:
    """The model's own and the request's; the token at index min_tokens is the first that may end."""
    assert end_of(tokens, frozenset({33}), min_tokens) == reason


def test_an_end_token_at_the_limit_is_a_stop() -> None:
    """The model had said all; any other token there is cut off."""
    assert end_of([5, EOS], max_tokens=2) == "stop"
    assert end_of([5, 5], max_tokens=2) == "length"
