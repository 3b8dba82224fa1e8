"""Random schedules: requests that arrive, run, are aborted, fail and end, on a scheduler driven pass by pass."""

from __future__ import annotations

from collections.abc import Sequence as Items
from dataclasses import replace
from random import Random

from baton.engine.request import EngineRequest, KvExportSpec, Purpose
from baton.engine.runners.mock import MockRunner
from baton.engine.runners.mock.state import States, states_of
from baton.engine.scheduling.step import Step
from baton.engine.sequence import Phase, Sequence
from baton.kv.hashing import BlockHash
from engine.rig import GREEDY, LAYOUT, expected_tokens, prompt_of, request_of
from engine.stepper import BLOCK_TOKENS, Exported, Stepper

MAX_PASSES = 2000
"""Passes in which any schedule here must have ended."""


LONGEST_PROMPT = 24
"""Tokens of a prompt at most."""
LONGEST_OUTPUT = 20
"""Tokens of an output at most."""


def random_requests(random: Random, num_requests: int) -> list[EngineRequest]:
    """Return requests whose prompts share prefixes or are equal, so that caches are hit and work is shared."""
    lengths = [random.randint(1, LONGEST_PROMPT) for _ in range(random.choice([1, 3, num_requests]))]
    tenants = random.choice(["", "ab"])
    return [random_request(random, index, random.choice(lengths), tenants) for index in range(num_requests)]


def random_request(random: Random, index: int, num_prompt_tokens: int, tenants: str = "") -> EngineRequest:
    """Return a request."""
    purpose = random.choice([Purpose.GENERATE, Purpose.GENERATE, Purpose.GENERATE, Purpose.RECEIVE, Purpose.PREFILL])
    is_scored = purpose is Purpose.GENERATE and random.random() < 0.2
    prompt = prompt_of(num_prompt_tokens, seed=random.choice([1, 1, 2]))
    max_tokens = random.choice([random.randint(1, 10), LONGEST_OUTPUT, LONGEST_OUTPUT])
    num_delivered = random.choice([0, 0, 0, 0, random.randrange(max_tokens)])
    return request_of(
        prompt,
        f"r{index}",
        replace(GREEDY, max_tokens=max_tokens, num_prompt_logprobs=1 if is_scored else None),
        output_token_ids=tuple(expected_tokens(prompt, num_delivered)),
        purpose=purpose,
        is_cache_bypassed=random.random() < 0.08,
        cache_salt=random.choice(["", "", "", "", "other"]),
        priority=random.choice([0, 0, -2, 1, 100]),
        tenant=random.choice(tenants or [""]),
        tenant_weight=3,
        export=KvExportSpec(Exported(), chunk_tokens=random.choice([0, 0, 3])) if purpose is Purpose.PREFILL else None,
    )


def play(stepper: Stepper, arriving: list[EngineRequest], random: Random) -> list[Sequence]:
    """Let requests arrive, run, be aborted, fail and end; return those aborted or failed."""
    aborted: list[Sequence] = []
    arrival_rate, abort_rate = random.choice([0.2, 0.7, 1.0]), random.choice([0.0, 0.02, 0.2])
    for _ in range(MAX_PASSES):
        while arriving and random.random() < arrival_rate:
            stepper.add(arriving.pop())
        if random.random() < 0.3:
            stepper.admit_receiving()
        living = [sequence for sequence in stepper.sequences if sequence.phase is not Phase.FINISHED]
        if not arriving and not living:
            return aborted
        if living and random.random() < abort_rate:
            aborted.append(random.choice(living))
            stepper.scheduler.finish(aborted[-1])
        stepper.now += random.choice([0.0, 1.0, 20.0])
        fails = random.random() < 0.03
        step = stepper.step(fails=fails)
        if step:
            check_turns(stepper, step)
            stepper.scheduler.note_pass(step, random.choice([0.0, 1e-3 * step.num_tokens, 0.02]))
            aborted += step.members if fails else []
        check_contents(stepper)
        check_receptions(stepper)
        if random.random() < 0.1:
            use_block(stepper)
        for sequence in list(stepper.scheduler.receiving):
            end_a_reception(stepper, sequence, random)
            stepper.check()
    raise AssertionError("the requests did not end")


def use_block(stepper: Stepper) -> None:
    """Overwrite a block that nobody holds, if there is one, as an examination of the device does."""
    pool = stepper.scheduler.pool
    if pool.num_available:
        stepper.scheduler.take_uncopied()
        block_ids = pool.allocate(1)
        stepper.runner._states[block_ids] = 7
        stepper.runner._sums[block_ids] = 7 * LAYOUT.num_layers
        pool.release(block_ids)


def end_a_reception(stepper: Stepper, sequence: Sequence, random: Random) -> None:
    """Let a reception succeed, break, break after its first token or with part of its KV, or go on."""
    ways = ["wait", "wait", "commit", "fall back", "fall back after the first token", "fall back with a part"]
    what = random.choice(ways)
    if what == "commit":
        stepper.receive(sequence)
    elif what == "fall back":
        stepper.garble(sequence)
        stepper.scheduler.fall_back(sequence)
    elif what == "fall back with a part":
        end = random.randint(sequence.num_computed + 1, len(sequence.token_ids))
        stepper.garble(sequence)
        stepper.write(sequence, end)
        stepper.scheduler.fall_back(sequence, end)
    elif what != "wait":
        stepper.garble(sequence)
        sequence.token_ids.extend(expected_tokens(sequence.token_ids, 1))
        (stepper.scheduler.finish if sequence.finish_reason() else stepper.scheduler.fall_back)(sequence)


def check_turns(stepper: Stepper, step: Step) -> None:
    """Prove that whoever was admitted before others did so because they await its like, or lack blocks or room.

    So may one of the same tenant who would take more than is left to overtake another tenant's that lacks blocks.
    """
    pool = stepper.scheduler.pool
    first_blocked = None
    blocked_tenants = {each.request.tenant for each in stepper.scheduler.waiting if each.num_overtaken_blocks}
    for sequence in stepper.scheduler.waiting:
        assert sequence.num_overtaken_blocks <= pool.num_blocks_for(len(sequence.token_ids))
        first_blocked = first_blocked or (sequence if sequence.num_overtaken_blocks else None)
        is_passed = first_blocked or blocked_tenants - {sequence.request.tenant}
        overtakers = [each for each in step.admitted if each.queue_key > sequence.queue_key]
        overtakers = [each for each in overtakers if each.request.tenant == sequence.request.tenant]
        if sequence.purpose is Purpose.PREFILL:  # an export may lack room that only exports need
            overtakers = [each for each in overtakers if each.purpose is Purpose.PREFILL]
        if sequence.purpose is Purpose.RECEIVE and stepper.limits.computes_for_others:  # half is for others
            overtakers = [each for each in overtakers if each.purpose is Purpose.RECEIVE]
        assert not overtakers or sequence.awaited is not None or is_passed or stepper.is_full(step)


def check_receptions(stepper: Stepper) -> None:
    """Prove that several receptions have half of slots and blocks at most where others wait for KV from here."""
    receiving, limits = stepper.scheduler.receiving, stepper.limits
    if limits.computes_for_others and len(receiving) > 1:
        assert 2 * len(receiving) <= limits.max_batch_size
        assert 2 * sum(len(each.block_table) for each in receiving) <= stepper.scheduler.pool.num_blocks


def check_contents(stepper: Stepper) -> None:
    """Prove that every block holds the KV of the tokens that its sequence, or its hash, stands for."""
    scheduler, runner = stepper.scheduler, stepper.runner
    tokens_of: dict[BlockHash, list[int]] = {}
    for sequence in stepper.sequences:
        for index, block_hash in enumerate(sequence.hashes):
            tokens_of[block_hash] = sequence.token_ids[: (index + 1) * BLOCK_TOKENS]
    for sequence in (*scheduler.running, *scheduler.receiving):
        kv = _kept(runner, sequence.block_table, sequence.num_computed)
        assert (kv == states_of(sequence.token_ids[: sequence.num_computed], 0, LAYOUT.num_layers)).all()
    for block_hash in scheduler.pool.hashes:
        start = len(tokens_of[block_hash]) - BLOCK_TOKENS
        kv = _kept(runner, scheduler.pool.match([block_hash]), BLOCK_TOKENS)
        assert (kv == states_of(tokens_of[block_hash][start:], start, LAYOUT.num_layers)).all()


def _kept(runner: MockRunner, block_table: Items[int], num_tokens: int) -> States:
    """Return the states of leading positions, as blocks hold them: [num_layers, num_tokens]."""
    states = runner._states[list(block_table)].swapaxes(0, 1)
    return states.reshape(len(states), -1)[:, :num_tokens]
