"""The scheduler, driven pass by pass over the mock model."""

from __future__ import annotations

from dataclasses import replace

import pytest

from baton.engine.request import KvExportSpec, Purpose
from baton.engine.sequence import LEVEL_SECONDS, Phase
from baton.errors import OutOfMemoryError
from engine.rig import EOS, GREEDY, expected_tokens, prompt_of, request_of
from engine.scheduling.schedules import check_contents
from engine.stepper import BLOCK_TOKENS, Exported, Stepper, output_of, run


@pytest.mark.parametrize("length", [BLOCK_TOKENS - 1, BLOCK_TOKENS, BLOCK_TOKENS + 1, 2 * BLOCK_TOKENS])
def test_a_prompt_that_is_cached_to_its_end_computes_its_last_position(length: int) -> None:
    """Its logits are needed: the hit ends before the last token, at a block's border."""
    stepper = Stepper()
    first = stepper.add(request_of(prompt_of(length)))
    run(stepper)
    second = stepper.add(request_of(prompt_of(length)))
    run(stepper)

    assert second.stats.num_cached == (length - 1) // BLOCK_TOKENS * BLOCK_TOKENS
    assert output_of(second) == output_of(first) == expected_tokens(prompt_of(length), 8)


@pytest.mark.parametrize(
    ("length", "purpose", "num_computed"),
    [(1, Purpose.GENERATE, 1), (9, Purpose.GENERATE, 2), (30, Purpose.GENERATE, 0), (30, Purpose.RECEIVE, 0)],
)
def test_a_pass_keeps_for_a_newcomer_what_it_can_use(length: int, purpose: Purpose, num_computed: int) -> None:
    """A tenth of the pass at most, nothing where it is through no sooner or elsewhere; the long prompt has the rest."""
    stepper = Stepper(num_blocks=64, max_step_tokens=16)
    long = stepper.add(request_of(prompt_of(100), "long"))
    stepper.step()
    newcomer = stepper.add(request_of(prompt_of(length, seed=2), "newcomer", purpose=purpose))

    step = stepper.step()

    assert step is not None
    assert newcomer.is_admitted
    assert step.num_tokens == 16
    assert long.num_computed == 16 + 16 - num_computed
    stepper.scheduler.finish(long)
    stepper.scheduler.finish(newcomer)


@pytest.mark.parametrize(("num_blocks", "num_admitted"), [(64, 2), (3 + 3 + 9 + 1 + 1, 2), (3 + 3 + 9 + 1, 1)])
def test_a_reception_gets_its_blocks_without_a_pass(num_blocks: int, num_admitted: int) -> None:
    """It computes nothing, so that it need not wait until the pass in flight is over, nor for who waits for that.

    Whom it passes keeps its blocks, and one is left for each token that is to come.
    """
    stepper = Stepper(num_blocks=num_blocks)
    decoding = stepper.add(request_of(prompt_of(9)))
    stepper.step()
    first = stepper.add(request_of(prompt_of(9, seed=2), "first", purpose=Purpose.RECEIVE))
    behind = stepper.add(request_of(prompt_of(36, seed=3), "behind"))
    last = stepper.add(request_of(prompt_of(4, seed=4), "last", purpose=Purpose.RECEIVE))

    admitted = stepper.admit_receiving()

    assert admitted == [first, last][:num_admitted]
    assert first.phase is Phase.RECEIVING
    assert behind.phase is Phase.WAITING
    stepper.step()
    assert behind.phase is Phase.RUNNING
    for sequence in (decoding, first, behind, last):
        stepper.scheduler.finish(sequence)


@pytest.mark.parametrize("is_examined", [False, True])
def test_what_a_reception_s_blocks_held_is_copied_out_before_it_is_overwritten(is_examined: bool) -> None:
    """Not when it gets them, which would have it wait for the pass in flight; nor once the device was examined."""
    stepper = Stepper(num_blocks=8, host_blocks=8)
    stepper.add(request_of(prompt_of(16), params=replace(GREEDY, max_tokens=1)))
    run(stepper)
    params = replace(GREEDY, max_tokens=1)
    receiving = stepper.add(request_of(prompt_of(31, seed=2), params=params, purpose=Purpose.RECEIVE))
    store = stepper.scheduler.offload.store

    assert stepper.admit_receiving() == [receiving]
    assert store.num_blocks == 0
    if is_examined:
        stepper.scheduler.take_uncopied()
    stepper.write(receiving, 31)

    assert store.num_blocks == (0 if is_examined else 4)
    check_contents(stepper)
    stepper.scheduler.finish(receiving)


def test_a_reception_leaves_their_slots_to_those_that_it_passes() -> None:
    """The batch has room for one more, which is before it."""
    stepper = Stepper(max_batch_size=2)
    stepper.add(request_of(prompt_of(4)))
    stepper.step()
    stepper.add(request_of(prompt_of(4, seed=2), "behind"))
    stepper.add(request_of(prompt_of(4, seed=3), "last", purpose=Purpose.RECEIVE))

    assert stepper.admit_receiving() == []


@pytest.mark.parametrize("num_behind", [0, 1])
def test_a_reception_waits_for_blocks_that_a_pass_in_flight_fills(num_behind: int) -> None:
    """Where the pass fails they never held what their hash says, and the reception would never know."""
    stepper = Stepper()
    filling = stepper.add(request_of(prompt_of(9)))
    step = stepper.scheduler.schedule()
    stepper.scheduler.progress.begin(step)
    for _ in range(num_behind):
        behind = stepper.scheduler.schedule()
        assert behind.sequences == [filling]
        stepper.scheduler.progress.begin(behind)
    receiving = stepper.add(request_of(prompt_of(9), "receiving", purpose=Purpose.RECEIVE))

    in_flight = stepper.admit_receiving()
    step.num_collected = 1
    proven = stepper.admit_receiving()

    assert (in_flight, proven) == ([], [receiving])
    assert receiving.num_computed == 2 * BLOCK_TOKENS
    for sequence in (filling, receiving):
        stepper.scheduler.finish(sequence)


def test_decoding_sequences_come_before_prompts() -> None:
    """Their pace holds while a long prompt is computed in what is left of the budget."""
    stepper = Stepper(max_step_tokens=5)
    decoding = stepper.add(request_of(prompt_of(4)))
    stepper.step()
    prefilling = stepper.add(request_of(prompt_of(20, seed=2)))

    step = stepper.step()

    assert step is not None
    assert step.sequences == [decoding, prefilling]
    assert [len(span.token_ids) for span in step.spans] == [1, 4]


def test_a_prefill_is_cut_into_the_chunks_it_asks_for() -> None:
    """Even where the budget would allow more."""
    stepper = Stepper(max_step_tokens=8)
    stepper.add(request_of(prompt_of(8), purpose=Purpose.PREFILL, export=KvExportSpec(Exported(), chunk_tokens=3)))

    lengths = []
    while step := stepper.step():
        lengths.append(len(step.spans[0].token_ids))

    assert lengths == [3, 3, 2]


def test_the_sequence_that_came_last_is_preempted_and_says_the_same() -> None:
    """Its blocks go to those before it; its output stays."""
    stepper = Stepper(num_blocks=6)
    params = replace(GREEDY, max_tokens=12)
    first = stepper.add(request_of(prompt_of(8, 1), "first", params))
    last = stepper.add(request_of(prompt_of(8, 2), "last", params))

    run(stepper)

    assert (first.stats.num_preemptions, last.stats.num_preemptions) == (0, 1)
    assert output_of(first) == expected_tokens(prompt_of(8, 1), 12)
    assert output_of(last) == expected_tokens(prompt_of(8, 2), 12)


def test_nobody_gives_up_blocks_for_a_token_that_never_comes() -> None:
    """The last tokens of two sequences that fill their blocks are on their way: neither needs another block."""
    stepper = Stepper(num_blocks=3)
    params = replace(GREEDY, max_tokens=1)
    sequences = [stepper.add(request_of(prompt_of(BLOCK_TOKENS, seed), f"r{seed}", params)) for seed in (1, 2)]
    stepper.scheduler.progress.begin(stepper.scheduler.schedule())

    stepper.scheduler.schedule()

    assert [sequence.num_outputs_left for sequence in sequences] == [0, 0]
    assert [sequence.stats.num_preemptions for sequence in sequences] == [0, 0]
    assert [len(sequence.block_table) for sequence in sequences] == [1, 1]


def test_what_a_preempted_sequence_held_comes_back_from_host_memory() -> None:
    """Its blocks are copied out when others overwrite them, and are not computed again."""
    tokens = {}
    for host_blocks in (0, 100):
        stepper = Stepper(num_blocks=14, max_step_tokens=64, host_blocks=host_blocks)
        params = replace(GREEDY, max_tokens=30)
        sequences = [stepper.add(request_of(prompt_of(20, seed), f"r{seed}", params)) for seed in (1, 2)]
        num_tokens = 0
        while step := stepper.step():
            num_tokens += step.num_tokens
        tokens[host_blocks] = num_tokens
        assert [output_of(each) for each in sequences] == [expected_tokens(prompt_of(20, seed), 30) for seed in (1, 2)]
        assert sequences[1].stats.num_preemptions > 0
        assert (stepper.num_moved > 0) == (host_blocks > 0)

    assert tokens[100] < tokens[0] - 4 * BLOCK_TOKENS


def test_the_lowest_priority_is_preempted_and_the_highest_comes_first() -> None:
    """Whatever came first."""
    stepper = Stepper(num_blocks=6, max_batch_size=2)
    params = replace(GREEDY, max_tokens=12)
    low = stepper.add(request_of(prompt_of(8, 1), "low", params, priority=3))
    middle = stepper.add(request_of(prompt_of(8, 2), "middle", params))
    high = stepper.add(request_of(prompt_of(8, 3), "high", params, priority=-3))

    step = stepper.step()
    run(stepper)

    assert step is not None
    assert step.admitted == [high, middle]
    assert (high.stats.num_preemptions, middle.stats.num_preemptions) == (0, 1)
    assert all(output_of(each) == expected_tokens(each.request.prompt_token_ids, 12) for each in (low, middle, high))


def test_who_has_waited_long_enough_is_not_overtaken_by_a_higher_priority() -> None:
    """A level counts as some seconds."""
    stepper = Stepper(max_batch_size=1)
    low = stepper.add(request_of(prompt_of(8, 1), "low", priority=2))
    stepper.now = 2 * LEVEL_SECONDS + 1.0
    high = stepper.add(request_of(prompt_of(8, 2), "high"))

    step = stepper.step()

    assert step is not None
    assert step.admitted == [low]
    assert high.phase is Phase.WAITING


def test_while_memory_is_short_nobody_joins_others() -> None:
    """Who runs goes on, the next one comes when nobody runs any more, and all together when memory is there again."""
    stepper = Stepper(num_blocks=64, max_step_tokens=64)
    early = [stepper.add(request_of(prompt_of(8, seed), f"r{seed}")) for seed in range(2)]
    stepper.step()
    stepper.scheduler.admission.is_sparing = True
    late = [stepper.add(request_of(prompt_of(8, seed), f"r{seed}")) for seed in range(2, 5)]
    while late[0].phase is Phase.WAITING:
        assert stepper.step()
    alone = list(stepper.scheduler.running)
    stepper.scheduler.admission.is_sparing = False
    stepper.step()

    assert [sequence.phase for sequence in early] == [Phase.FINISHED] * 2
    assert alone == late[:1]
    assert list(stepper.scheduler.running) == late
    run(stepper)
    for seed, sequence in enumerate((*early, *late)):
        assert output_of(sequence) == expected_tokens(prompt_of(8, seed), 8)


def test_a_short_prompt_does_not_wait_for_all_chunks_of_a_long_one() -> None:
    """It gets a tenth of each pass until it is computed; at the pass in which it comes, too."""
    stepper = Stepper(num_blocks=64, max_step_tokens=40)
    long = stepper.add(request_of(prompt_of(200, 1), "long"))
    stepper.step()
    short = stepper.add(request_of(prompt_of(7, 2), "short"))

    steps = [stepper.step(), stepper.step()]

    assert [step and [len(span.token_ids) for span in step.spans] for step in steps] == [[36, 4], [37, 3]]
    assert len(output_of(short)) == 1
    assert long.num_computed == 40 + 36 + 37


def test_who_finds_too_few_blocks_is_overtaken_within_bounds() -> None:
    """Shorter ones pass until they have taken as many blocks as it needs; then all wait for it."""
    stepper = Stepper(num_blocks=12, max_batch_size=8, max_step_tokens=64)
    stepper.add(request_of(prompt_of(28, 1), "first", replace(GREEDY, max_tokens=12)))
    stepper.step()
    large = stepper.add(request_of(prompt_of(24, 2), "large", replace(GREEDY, max_tokens=1)))
    params = replace(GREEDY, max_tokens=1)
    small = [stepper.add(request_of(prompt_of(8, seed), f"small {seed}", params)) for seed in (3, 4, 5, 6, 7)]

    for _ in range(8):
        stepper.step()

    assert large.phase is Phase.WAITING
    assert [each.phase for each in small] == [Phase.FINISHED] * 3 + [Phase.WAITING] * 2
    run(stepper)
    assert all(each.phase is Phase.FINISHED for each in (large, *small))


def test_an_export_that_begins_beside_a_full_pass_fails_with_it() -> None:
    """Nothing of it is computed yet, but what its prefix has is handed out by that pass."""
    stepper = Stepper(max_step_tokens=4)
    stepper.add(request_of(prompt_of(4), "before"))
    run(stepper)
    full = stepper.add(request_of(prompt_of(4, 1), "full"))
    export = KvExportSpec(Exported())
    exporting = stepper.add(request_of(prompt_of(9), "exporting", purpose=Purpose.PREFILL, export=export))

    step = stepper.step()

    assert step is not None
    assert step.sequences == [full]
    assert step.members == [full, exporting]


def test_who_has_begun_does_not_wait_behind_one_that_may_not_begin() -> None:
    """It makes the room that the other waits for; of those that have not begun, one that exports waits for its turn."""
    stepper = Stepper()
    begun = stepper.add(request_of(prompt_of(20), "begun", purpose=Purpose.PREFILL))
    step = stepper.step()
    assert step is not None
    export = KvExportSpec(Exported(), may_begin=lambda: bool(output_of(begun)))
    stepper.add(request_of(prompt_of(9, 2), "early", purpose=Purpose.PREFILL, priority=-1, export=export))
    late_export = KvExportSpec(Exported())
    late = stepper.add(request_of(prompt_of(9, 3), "late", purpose=Purpose.PREFILL, export=late_export))
    local = stepper.add(request_of(prompt_of(5, 4), "local"))
    stepper.scheduler.undo(step)

    step = stepper.step()

    assert step is not None
    assert step.admitted == [begun, local]
    assert late.phase is Phase.WAITING
    run(stepper)
    assert [len(output_of(each)) for each in stepper.sequences] == [1, 1, 1, 8]


@pytest.mark.parametrize("purpose", [Purpose.GENERATE, Purpose.RECEIVE])
def test_who_needs_no_room_for_exports_passes_one_that_may_not_begin(purpose: Purpose) -> None:
    """On a node that does both a slow receiver elsewhere keeps nobody waiting who generates here."""
    stepper = Stepper()
    export = KvExportSpec(Exported(), may_begin=lambda: False)
    stuck = stepper.add(request_of(prompt_of(9), "stuck", purpose=Purpose.PREFILL, export=export))
    behind = stepper.add(request_of(prompt_of(9, 2), "behind", purpose=Purpose.PREFILL))
    own = stepper.add(request_of(prompt_of(9, 3), "own", purpose=purpose))

    stepper.step()

    assert own.is_admitted
    assert (stuck.phase, behind.phase) == (Phase.WAITING, Phase.WAITING)


@pytest.mark.parametrize("tenant", ["", "t"])
@pytest.mark.parametrize("is_export", [False, True], ids=["the same prompt", "no room for exports"])
def test_however_many_are_held_up_another_one_passes(is_export: bool, tenant: str) -> None:
    """They wait for what one of them computes, or for room for what they hand out; it waits for nothing."""
    stepper = Stepper(num_blocks=4096, max_batch_size=512)
    export = KvExportSpec(Exported(), may_begin=lambda: False) if is_export else None
    purpose = Purpose.PREFILL if is_export else Purpose.GENERATE
    for index in range(300):
        prompt = prompt_of(9, index + 2) if is_export else prompt_of(400)
        held = request_of(prompt, f"held-{index}", purpose=purpose, export=export)
        stepper.add(replace(held, tenant=tenant and f"{tenant}{index % 2}"))
    own = stepper.add(replace(request_of(prompt_of(9, 9999), "own"), tenant=tenant and "own"))

    for _ in range(3):
        stepper.step()

    assert own.is_admitted


def test_who_waits_wants_blocks_but_for_what_several_wait_for() -> None:
    """These share what the first of them computes."""
    stepper = Stepper(num_blocks=4096, max_batch_size=2)
    held = [stepper.add(request_of(prompt_of(400), f"same-{index}")) for index in range(3)][1:]
    others = [stepper.add(request_of(prompt_of(400, index + 2), f"other-{index}")) for index in range(3)]
    stepper.step()

    admission = stepper.scheduler.admission
    num_blocks = stepper.scheduler.pool.num_blocks_for(400)

    assert [admission.num_wanted_blocks(each) for each in held] == [0, 0]
    assert [admission.num_wanted_blocks(each) for each in others if not each.is_admitted] == [num_blocks] * 2


def test_receptions_that_hold_every_block_only_delay_the_others() -> None:
    """The running sequence gives way and goes on when a reception has ended."""
    stepper = Stepper(num_blocks=6)
    running = stepper.add(request_of(prompt_of(4), "running"))
    receiving = stepper.add(request_of(prompt_of(13, 2), "receiving", purpose=Purpose.RECEIVE))
    run(stepper)
    assert running.phase is Phase.WAITING
    assert receiving.phase is Phase.RECEIVING
    assert not stepper.scheduler.running

    stepper.scheduler.finish(receiving)
    run(stepper)

    assert output_of(running) == expected_tokens(prompt_of(4), 8)


def test_received_kv_can_be_hit_only_after_the_commit() -> None:
    """Until the summary has confirmed it, it is invisible."""
    stepper = Stepper()
    receiving = stepper.add(request_of(prompt_of(12), purpose=Purpose.RECEIVE))
    stepper.step()
    assert not stepper.scheduler.pool.hashes

    stepper.receive(receiving)

    assert stepper.scheduler.pool.match(receiving.hashes) == receiving.block_table[:3]


def test_a_resumed_reception_decodes_after_its_earlier_output() -> None:
    """Prompt and earlier output are one prefill for the other node; one more token makes the commit."""
    stepper = Stepper()
    whole = expected_tokens(prompt_of(9), 8)
    sequence = stepper.add(request_of(prompt_of(9), purpose=Purpose.RECEIVE, output_token_ids=tuple(whole[:3])))
    stepper.step()
    stepper.receive(sequence)

    assert sequence.num_pending == 1
    run(stepper)
    assert output_of(sequence) == whole


def test_a_bypassed_cache_is_neither_read_nor_filled() -> None:
    """As the request asked."""
    stepper = Stepper()
    stepper.add(request_of(prompt_of(12), is_cache_bypassed=True))
    run(stepper)
    assert not stepper.scheduler.pool.hashes

    stepper.add(request_of(prompt_of(12)))
    run(stepper)
    again = stepper.add(request_of(prompt_of(12), is_cache_bypassed=True))
    run(stepper)

    assert again.stats.num_cached == 0


def test_requests_of_different_salts_share_nothing() -> None:
    """A hit would tell one tenant what another has asked."""
    stepper = Stepper()
    stepper.add(request_of(prompt_of(12), cache_salt="a"))
    run(stepper)
    other = stepper.add(request_of(prompt_of(12), cache_salt="b"))
    same = stepper.add(request_of(prompt_of(12), cache_salt="a"))
    run(stepper)

    assert (other.stats.num_cached, same.stats.num_cached) == (0, 8)


@pytest.mark.parametrize(("num_tokens", "is_refused"), [(12, False), (13, False), (14, True)])
def test_a_request_that_could_not_finish_even_alone_is_refused(num_tokens: int, is_refused: bool) -> None:
    """The KV of the last token is never needed: 4 + 13 tokens fill 16 positions."""
    stepper = Stepper(num_blocks=4)
    request = request_of(prompt_of(4), params=replace(GREEDY, max_tokens=num_tokens))

    if is_refused:
        with pytest.raises(OutOfMemoryError, match="5 KV blocks of 4 tokens; the node has 4"):
            stepper.add(request)
        return
    sequence = stepper.add(request)
    run(stepper)

    assert len(output_of(sequence)) == num_tokens


def end_of(tokens: list[int], stop: frozenset[int] = frozenset(), min_tokens: int = 0, max_tokens: int = 9) -> object:
    """Return how a generation with this output ends, if it does."""
    params = replace(GREEDY, stop_token_ids=stop, min_tokens=min_tokens, max_tokens=max_tokens)
    sequence = Stepper().add(request_of(prompt_of(3), params=params))
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
